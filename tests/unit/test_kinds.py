"""Kinds of backends: groups in a file, and plans for the kinds that are there."""

from typing import Any

import pytest

from fermata.applications.backends import BackendGroup
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, Request
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import DeferredOptions
from fermata.simulator.goodput import fluid_bound_rps
from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

FAST: dict[str, Any] = {"count": 4, "kind": "fast"}
SLOW: dict[str, Any] = {"count": 4, "kind": "slow", "slower": 3}
NET: dict[str, Any] = {"name": "net", "alpha_ms": 1.053, "beta_ms": 5.072, "accuracy": 0.8}


def scenario_of(backends: object, slo_ms: float = 100, copies: int = 1, **top: Any) -> Any:
    application = {"name": "app", "slo_ms": slo_ms, "copies": copies, "variants": [NET]}
    given = {"seed": 3, "duration_s": 4, "rate_rps": 1000, "applications": [application]}
    return {**given, "backends": backends, **top}


def played(document: Any) -> RunReport:
    scenario = read_scenario(document)
    return report(scenario, simulate(scenario))


# The file


def test_groups_are_read_in_order() -> None:
    scenario = read_scenario(scenario_of([SLOW, FAST, {**SLOW, "count": 2}]))
    assert scenario.backends == 10
    assert scenario.kind_of == (0,) * 4 + (1,) * 4 + (0,) * 2
    assert scenario.kinds == (BackendGroup(4, "slow", 3.0), BackendGroup(4, "fast"))


@pytest.mark.parametrize("plain", [8, [{"count": 8}], [{"count": 5}, {"count": 3}]])
def test_backends_of_one_kind_are_the_plain_case(plain: object) -> None:
    assert read_scenario(scenario_of(plain)) == read_scenario(scenario_of(8))


@pytest.mark.parametrize(
    ("backends", "message"),
    [
        (0, "backends=0: must be a whole number of at least 1"),
        ([], r"backends=\[\]: must be a whole number"),
        ([{"kind": "fast"}], r"backends\[0\]\.count"),
        ([{**SLOW, "slower": 0}], r"backends\[0\]\.slower=0: must be"),
        ([{"count": 4, "speed": 2}], "speed"),
        ([{"count": 0}], r"backends\[0\]\.count=0: must be"),
        ("many", "backends='many': must be a whole number"),
    ],
)
def test_mistakes_in_groups_are_named(backends: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_scenario(scenario_of(backends))


def test_several_kinds_are_not_scaled() -> None:
    with pytest.raises(ConfigError, match="several kinds, and only one can be scaled"):
        read_scenario(scenario_of([SLOW, FAST], autoscaler={"maximum": 16}))


def test_a_variant_may_have_a_profile_for_a_kind() -> None:
    given = scenario_of([FAST, {**SLOW, "slower": 1}])
    own = {"slow": {"name": "net", "alpha_ms": 3.159, "beta_ms": 15.216}}
    given["applications"][0]["variants"] = [{**NET, "profiles": own}]
    by_profile, by_factor = read_scenario(given), read_scenario(scenario_of([FAST, SLOW]))
    assert fluid_bound_rps(by_profile) == pytest.approx(fluid_bound_rps(by_factor))
    assert played(given).bad_rate == played(scenario_of([FAST, SLOW])).bad_rate


def test_the_bound_is_the_sum_of_the_kinds() -> None:
    parts = [fluid_bound_rps(read_scenario(scenario_of([each]))) for each in (FAST, SLOW)]
    assert fluid_bound_rps(read_scenario(scenario_of([FAST, SLOW]))) == pytest.approx(sum(parts))


# Deferred scheduling


@pytest.mark.parametrize("groups", [[FAST, SLOW], [SLOW, FAST]], ids=["fast first", "slow first"])
@pytest.mark.parametrize(("slo_ms", "copies"), [(100, 1), (50, 1), (100, 8)])
def test_an_unequal_fleet_serves_what_its_parts_do(
    groups: list[object], slo_ms: float, copies: int
) -> None:
    # Slightly below the sum of the goodputs that `benchmarks.goodput` finds for the two parts.
    rate_rps = {(100, 1): 4350, (50, 1): 3750, (100, 8): 3700}[slo_ms, copies]
    assert played(scenario_of(groups, slo_ms, copies, rate_rps=rate_rps)).bad_rate <= 0.01


@pytest.mark.parametrize("hold", ["deferred", "auto", "eager"])
@pytest.mark.parametrize("slow_first", [False, True])
def test_slow_backends_serve_when_the_fast_one_dies(hold: str, slow_first: bool) -> None:
    groups = [{**FAST, "count": 1}, {**SLOW, "count": 8}]
    fast = 8 if slow_first else 0
    given = scenario_of(
        groups[::-1] if slow_first else groups,
        slo_ms=60,
        rate_rps=150,
        policy_options={"hold": hold},
        faults=[{"at_s": 1, "backend": fast, "kind": "crash", "for_s": 2}],
    )
    assert played(given).bad_rate <= 0.01


def test_a_fleet_of_a_later_kind_is_planned_with_its_own_table() -> None:
    """Requests are held for as long as the kinds that are up allow, and no longer."""
    costs = Costs()
    costs.add(0, [ms(5 + size) for size in range(1, 9)])
    costs.add(0, [ms(3 * (5 + size)) for size in range(1, 9)], kind=1)
    engine = Engine(costs)
    engine.add_application(ModelThread(0, DeferredOptions()))
    engine.on_backend_up(0, 0, kind=1)
    engine.on_request(0, Request(0, 0, 0, ms(30), ms(30)))
    while not (effects := engine.take_effects()):
        engine.on_time(engine.wake_at_ns())
    assert isinstance(effects[0], Dispatch)
    # One more request would take 21 ms.
    assert engine.wake_at_ns() >= ms(9)


def test_tight_requests_are_left_to_the_fast_kind() -> None:
    costs = Costs()
    costs.add(0, [ms(5 + size) for size in range(1, 9)])
    costs.add(0, [ms(3 * (5 + size)) for size in range(1, 9)], kind=1)
    engine = Engine(costs)
    engine.add_application(ModelThread(0, DeferredOptions(hold="eager")))
    engine.on_backend_up(0, 0, kind=0)
    engine.on_backend_up(0, 1, kind=1)
    for rid, slo_ms in enumerate((10, 30, 12)):
        engine.on_request(0, Request(rid, 0, 0, ms(slo_ms), ms(slo_ms)))
    given: dict[int, list[int]] = {}
    while engine.outbox.queued:
        now_ns = engine.wake_at_ns()
        engine.on_time(now_ns)
        for effect in engine.take_effects():
            assert not isinstance(effect, Drop)
            if isinstance(effect, Dispatch):
                given[effect.backend] = [each.rid for each in effect.batch.requests]
    assert given == {0: [0, 2, 1]} or given == {0: [0, 2], 1: [1]}


# Policies with one queue for all kinds

ONE_QUEUE = ["central-queue", "batch-queues", "jellyfish-plus"]


@pytest.mark.parametrize("policy", ONE_QUEUE)
def test_what_only_another_kind_serves_in_time_is_not_given_up(policy: str) -> None:
    # The first kind takes 18.4 ms for one request alone, the second 6.1 ms.
    served = played(scenario_of([SLOW, FAST], 15, rate_rps=200, policy=policy))
    assert served.bad_rate < 0.01


@pytest.mark.parametrize("policy", ONE_QUEUE)
def test_the_kinds_that_are_left_are_planned_with(policy: str) -> None:
    fast = {"count": 1, "kind": "fast"}
    left = {"count": 8, "kind": "slow", "slower": 3}
    top = {"policy": policy, "rate_rps": 500, "duration_s": 8, "warmup_s": 2}
    faults = [{"at_s": 1, "backend": 0, "kind": "crash"}]
    served = played(scenario_of([fast, left], 100, faults=faults, **top))
    assert served.bad_rate <= played(scenario_of([left], 100, **top)).bad_rate + 0.002


@pytest.mark.parametrize("policy", ["central-queue", "jellyfish-plus"])
def test_variants_are_chosen_by_what_the_kinds_together_can_do(policy: str) -> None:
    small = {"name": "small", "alpha_ms": 1.0, "beta_ms": 5.0, "accuracy": 0.7}
    large = {"name": "large", "alpha_ms": 3.0, "beta_ms": 15.0, "accuracy": 0.8}
    found = []
    for groups in ([FAST, SLOW], [SLOW, FAST]):
        given = scenario_of(groups, 200, rate_rps=600, policy=policy, duration_s=8, warmup_s=2)
        given["applications"][0]["variants"] = [small, large]
        found.append(played(given))
    assert found[0].accuracy == pytest.approx(found[1].accuracy, abs=0.005)
    assert max(each.bad_rate for each in found) < 0.01


@pytest.mark.parametrize("policy", ["deferred", "lookahead"])
def test_idle_backends_of_no_use_leave_nothing_to_spare(policy: str) -> None:
    useless = {"count": 2, "kind": "useless", "slower": 6}
    load: dict[str, Any] = {"slo_ms": 30, "policy": policy, "rate_rps": 800}
    alone = played(scenario_of([{"count": 1, "kind": "fast"}], **load))
    beside = played(scenario_of([useless, {"count": 1, "kind": "fast"}], **load))
    assert beside.bad_rate <= alone.bad_rate + 0.02


@pytest.mark.parametrize("hold", ["deferred", "auto"])
def test_idle_backends_of_no_use_do_not_make_batches_small(hold: str) -> None:
    """In overload a batch that is ripe for long has others dropped in front of it; a wait that was
    learnt from that had batches leave with two or three requests."""

    def bad_rate(groups: list[object]) -> float:
        given = scenario_of(
            groups,
            slo_ms=23,
            rate_rps=1_800,
            arrivals={"process": "periodic", "phase": "staggered"},
            policy_options={"hold": hold},
        )
        flat = {"name": "flat", "alpha_ms": 0.4, "beta_ms": 10.6}
        given["applications"][0] |= {
            "clients": [{"count": 120, "fps": 15}],
            "variants": [flat],
        }
        return played(given).bad_rate

    fast = {**FAST, "count": 2}
    assert bad_rate([fast, {**SLOW, "count": 6}]) <= bad_rate([fast]) + 0.02
