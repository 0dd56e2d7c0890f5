"""Laws of arrivals and sets of tables by SLO, as users ask for them."""

import numpy as np
import pytest

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND, ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.events import Compute, Dispatch, Request
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.catalog import read_options
from fermata.router.policies.ramsis.counts import Bursty, Floats, poisson
from fermata.router.policies.ramsis.laws import law_of
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.slo_classes import SloClasses
from fermata.router.policies.ramsis.tables import job_for
from fermata.simulator.reports.report import report
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import read_scenario

VARIANTS = (
    VariantSpec("fast", (ms(8), ms(12), ms(16)), accuracy=0.6),
    VariantSpec("good", (ms(30), ms(55)), accuracy=0.9),
)


def doubled(rate_rps: float, times_s: Floats, count_max: int) -> Floats:
    """Twice as many as one thinks."""
    return poisson(2.0 * rate_rps, times_s, count_max)


def too_likely(rate_rps: float, times_s: Floats, count_max: int) -> Floats:
    return np.zeros((len(times_s), count_max + 1))


def too_few(rate_rps: float, times_s: Floats, count_max: int) -> Floats:
    return np.zeros(len(times_s))


def test_laws_have_names() -> None:
    assert law_of(read_options("ramsis", {})) is poisson
    bursty = law_of(read_options("ramsis", {"law": "bursty", "burst_ms": 20}))
    assert bursty == Bursty(0.02)
    assert law_of(read_options("ramsis", {"law": f"{__name__}:doubled"})) is doubled


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"law": "bursty"}, "burst_ms"),
        ({"law": "weekly"}, "module:name"),
        ({"law": "no_such_module:law"}, "cannot be loaded"),
        ({"law": "math:no_such_law"}, "cannot be loaded"),
        ({"law": "math:sqrt"}, "cannot be called"),
        ({"law": f"{__name__}:too_likely"}, "sum to at most 1"),
        ({"law": f"{__name__}:too_few"}, "51 logarithms"),
        ({"slos_ms": [100, 100]}, "differ"),
        ({"slos_ms": [0]}, "above 0"),
        ({"slos_ms": [100, 200], "slo_shares": [1]}, "as many"),
        ({"slos_ms": [100, 200], "slo_shares": [1, 0]}, "above 0"),
    ],
)
def test_what_is_no_law_is_refused_in_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read_options("ramsis", options)
    assert "\n" not in str(refused.value)


def made_for(options: dict[str, object], backends: int = 2) -> tuple[SloClasses, list[Compute]]:
    application = ApplicationSpec("task", ms(100), VARIANTS)
    built = assemble(RouterConfig((application,), "ramsis", options, lead_ns=0))
    for backend in range(backends):
        built.engine.on_backend_up(0, backend, owner=built.ownership.take(backend))
    built.engine.on_time(ms(60))
    asked = [each for each in built.engine.take_effects() if isinstance(each, Compute)]
    for each in asked:
        built.engine.on_computed(ms(60), 0, each.work())
    source = built.engine.sources[0]
    assert isinstance(source, SloClasses)
    return source, asked


def flat(size_max: int = 64, batch_size_max: int = 0) -> VariantSpec:
    """As GPUs are: a batch of 64 takes little more than one of 1."""
    times_ns = tuple(ms(4 + 0.1 * size) for size in range(1, size_max + 1))
    return VariantSpec("flat", times_ns, accuracy=0.7, batch_size_max=batch_size_max)


@pytest.mark.parametrize(("size_max", "given"), [(64, 0), (64, 64), (8, 8), (300, 300)])
def test_tables_know_every_batch_that_variants_run(size_max: int, given: int) -> None:
    for others in ((), VARIANTS):
        spec = ApplicationSpec("task", ms(100), (flat(size_max, given), *others))
        built = assemble(RouterConfig((spec,), "ramsis", {"bins": 10}, lead_ns=0))
        family, costs = built.families[0], built.engine.costs
        job = job_for(family, family.choices(), RamsisOptions(bins=10), costs, 0, 2)
        assert job.problem.queue_max == size_max


def test_queue_shorter_than_the_batches_asked_for_is_refused() -> None:
    spec = ApplicationSpec("task", ms(100), (flat(64, 64), *VARIANTS))
    with pytest.raises(ConfigError, match="queue_max=32: is below batch_size_max=64") as refused:
        assemble(RouterConfig((spec,), "ramsis", {"queue_max": 32}))
    assert "\n" not in str(refused.value)
    assemble(RouterConfig((spec,), "ramsis", {"queue_max": 64}))
    # A profile that happens to reach further is no contradiction.
    spec = ApplicationSpec("task", ms(100), (flat(64),))
    assemble(RouterConfig((spec,), "ramsis", {"queue_max": 32}))


def test_tables_are_solved_for_the_law() -> None:
    promised: list[float] = []
    for law in ("poisson", f"{__name__}:doubled"):
        scenario = read_scenario(
            {
                "backends": 2,
                "policy": "ramsis",
                "policy_options": {"law": law, "load_rps": 60, "bins": 20},
                "rate_rps": 60,
                "duration_s": 1,
                "applications": [
                    {
                        "name": "task",
                        "slo_ms": 100,
                        "variants": [
                            {"name": "fast", "latency_ms": [8, 12, 16], "accuracy": 0.6},
                            {"name": "good", "latency_ms": [30, 55], "accuracy": 0.9},
                        ],
                    }
                ],
            }
        )
        driver = Driver(scenario)
        driver.run()
        promised.append(driver.engine.sources[0].figures()["promised_accuracy"])
    assert promised[1] < promised[0] - 0.02


def test_every_slo_has_tables_and_backends_of_its_own() -> None:
    source, asked = made_for({"slos_ms": [200, 40], "slo_shares": [1, 3], "bins": 20}, backends=4)
    assert len(asked) == 2
    short, long = source.members
    assert [len(member.order) for member in source.members] == [3, 1]
    assert short.made[0].job.problem.slo_ns == ms(40)
    assert long.made[0].job.problem.slo_ns == ms(200)
    assert source.figures().keys() >= {"promised_accuracy_40ms", "promised_violation_200ms"}


def test_a_request_goes_to_the_longest_slo_that_it_allows() -> None:
    source, _ = made_for({"slos_ms": [40, 200], "bins": 20})
    short, long = source.members
    for slo_ms, member in ((200, long), (500, long), (199, short), (20, short)):
        assert source._member_for(Request(0, 0, SECOND, SECOND + ms(slo_ms))) is member


def test_a_class_without_backends_is_served_by_another() -> None:
    source, _ = made_for({"slos_ms": [40, 200], "bins": 20}, backends=1)
    (served,) = [member for member in source.members if member.order]
    for slo_ms in (40, 200):
        assert source._member_for(Request(0, 0, SECOND, SECOND + ms(slo_ms))) is served


def test_every_class_plans_with_the_lead_of_its_application() -> None:
    applications = [ApplicationSpec(name, ms(100), VARIANTS) for name in ("first", "second")]
    options = {"slos_ms": [40, 200], "bins": 20}
    engine = assemble(RouterConfig(tuple(applications), "ramsis", options)).engine
    for source, lead in zip(engine.sources, engine.leads, strict=True):
        assert isinstance(source, SloClasses)
        assert [each.lead for each in (source, *source.members)] == [lead] * 3


def test_cancel_and_loss_reach_the_class() -> None:
    application = ApplicationSpec("task", ms(100), VARIANTS)
    options = {"slos_ms": [40, 200], "bins": 20}
    built = assemble(RouterConfig((application,), "ramsis", options, lead_ns=0))
    engine = built.engine
    for backend in range(2):
        engine.on_backend_up(0, backend, owner=built.ownership.take(backend))
    for rid in range(4):
        slo_ns = ms(40) if rid % 2 else ms(200)
        engine.on_request(SECOND, Request(rid, 0, SECOND, SECOND + slo_ns))
    first = [each for each in engine.take_effects() if isinstance(each, Dispatch)]
    assert sorted(each.batch.requests[0].rid for each in first) == [0, 1]
    assert engine.on_cancel(SECOND, 2)
    assert not engine.on_cancel(SECOND, 0)
    gone = next(each.backend for each in first if each.batch.requests[0].rid == 1)
    engine.on_backend_down(SECOND + ms(1), gone)
    other = 1 - gone
    engine.on_done(SECOND + ms(8), other, ms(8))
    ran: list[int] = []
    for after_ms in (16, 24):
        for effect in engine.take_effects():
            if isinstance(effect, Dispatch):
                ran += [each.rid for each in effect.batch.requests]
        if len(ran) < 2:
            engine.on_done(SECOND + ms(after_ms), other, ms(8))
    # The one that ran on the backend when it was lost runs alone.
    assert ran == [3, 1]


def test_clients_of_two_slos_in_a_scenario() -> None:
    scenario = read_scenario(
        {
            "backends": 4,
            "policy": "ramsis",
            "policy_options": {"slos_ms": [40, 200], "bins": 40},
            "rate_rps": 60,
            "duration_s": 10,
            "applications": [
                {
                    "name": "task",
                    "slo_ms": 200,
                    "variants": [
                        {"name": "fast", "latency_ms": [8, 12, 16], "accuracy": 0.6},
                        {"name": "good", "latency_ms": [30, 55], "accuracy": 0.9},
                    ],
                    "clients": [{"slo_ms": 40}, {"slo_ms": 200}],
                }
            ],
        }
    )
    driver = Driver(scenario)
    result = report(scenario, driver.run())
    assert result.bad_rate < 0.02
    assert result.accuracy is not None
    assert result.accuracy > 0.8
