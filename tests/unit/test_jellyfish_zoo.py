"""Zoos of one's own: what is kept, what is refused, and how often clients are mapped anew."""

import random

import pytest

from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.events import Advise, ClientReport
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.jellyfish.decision import Decider, SearchEffort
from fermata.router.policies.jellyfish.known_clients import ClientNeeds
from fermata.router.policies.jellyfish.mapping_problem import MappingProblem, answer

Row = tuple[float, int, float]
"""Accuracy, input size, milliseconds of one picture."""


def application(*rows: Row) -> ApplicationSpec:
    variants = tuple(
        VariantSpec(
            f"v{place}",
            tuple(ms(run * size) for size in (1, 2, 3)),
            accuracy=accuracy,
            input_size=side,
        )
        for place, (accuracy, side, run) in enumerate(rows)
    )
    return ApplicationSpec("cameras", ms(100), variants)


def kept(*rows: Row) -> list[str]:
    built = assemble(RouterConfig((application(*rows),), "jellyfish"))
    return [f"v{place}" for place in range(len(rows)) if f"v{place}" not in built.unused_variants()]


def test_variants_of_one_size_are_kept_in_any_order() -> None:
    rows: list[Row] = [(0.8, 320, 20), (0.6, 320, 8), (0.4, 320, 3)]
    assert kept(*rows) == kept(*reversed(rows)) == ["v0", "v1", "v2"]


def test_fast_variant_of_larger_inputs_is_kept_beside_a_slow_one_of_smaller() -> None:
    assert kept((0.6, 160, 20), (0.5, 320, 4)) == ["v0", "v1"]
    assert kept((0.6, 160, 20), (0.8, 320, 4)) == ["v0", "v1"]
    assert kept((0.6, 160, 20), (0.6, 320, 4)) == ["v0", "v1"]


def test_variant_that_is_worse_in_every_way_is_left_out_and_named() -> None:
    assert kept((0.6, 160, 4), (0.5, 160, 4)) == ["v0"]
    assert kept((0.5, 320, 9), (0.6, 160, 4)) == ["v1"]
    assert kept((0.6, 160, 4), (0.6, 160, 4)) == ["v0"]


def test_more_accurate_and_faster_variant_is_planned_with_its_own_times() -> None:
    # At 320 pixels 4 ms, at 160 a slow one: only the fast one carries four cameras.
    needs = [
        ClientNeeds(number, ms(100), 25.0, 50e6, 0, 0.0, -1, {160: 1e5}) for number in range(4)
    ]
    tables = tuple(tuple(ms(run * size) for size in (1, 2, 3)) for run in (20, 4))
    problem = MappingProblem(
        (0.6, 0.8), tables, (160, 320), (0, 1), tuple(needs), 0.0, 0, 0.0, workers=1
    )
    decider = Decider(problem.zoo(), SearchEffort("resplit", 100), 4, random.Random(0))
    plan = answer(decider, problem)
    assert plan.left_out == ()
    assert plan.posts[0].dnn == 1


@pytest.mark.parametrize("sides", [(0, 0), (160, 0), (0, 160)])
def test_zoo_without_sizes_is_refused(sides: tuple[int, int]) -> None:
    variants = [
        {"name": f"v{side}-{place}", "latency_ms": [5], "accuracy": 0.5 + place / 10}
        | ({"input_size": side} if side else {})
        for place, side in enumerate(sides)
    ]
    row = {"name": "cameras", "slo_ms": 50, "policy": "jellyfish", "variants": variants}
    config = read_config({"applications": [row], "backend": {"device": "emulated"}})
    with pytest.raises(ConfigError, match=r"input_size of v0-\d=0: needs the side of its pictures"):
        router_config(config, known_profiles(config))


@pytest.mark.parametrize("bandwidth_bps", [0.0, 50e6])
def test_reports_do_not_make_more_plans_than_the_period(bandwidth_bps: float) -> None:
    built = assemble(RouterConfig((application((0.4, 160, 3), (0.8, 320, 9)),), "jellyfish"))
    engine = built.engine
    engine.on_backend_up(0, 0, owner=0)
    source = engine.sources[0]
    decided: set[int] = set()
    for step in range(400):
        now_ns = ms(25 * step)
        engine.on_report(now_ns, 0, ClientReport(1, ms(100), 10.0, bandwidth_bps, 160, 100_000))
        while engine.wake_at_ns() <= now_ns + ms(25):
            engine.on_time(engine.wake_at_ns())
        decided.add(source.decided_at_ns)  # type: ignore[attr-defined]
    # Ten seconds, two plans a second, and one for the newcomer.
    assert len(decided) <= 22


def test_client_that_learns_its_bandwidth_is_planned_anew_at_once() -> None:
    built = assemble(RouterConfig((application((0.4, 160, 3), (0.8, 320, 9)),), "jellyfish"))
    engine = built.engine
    engine.on_backend_up(0, 0, owner=0)
    for at_ms, bandwidth_bps in ((0, 0.0), (150, 50e6)):
        engine.on_report(ms(at_ms), 0, ClientReport(1, ms(100), 10.0, bandwidth_bps, 160, 100_000))
        engine.on_time(ms(at_ms) + 1)
        advice = [each for each in engine.take_effects() if isinstance(each, Advise)]
    assert [each.input_size for each in advice] == [320]
