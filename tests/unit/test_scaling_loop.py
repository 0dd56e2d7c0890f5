"""The control plane's side of the loop: readings out of snapshots, and the kept plan."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("ray")
from snapshots import application, router, sub_cluster

from fermata.autoscaler.readings import rates_between, window_between
from fermata.autoscaler.rule import demand_of
from fermata.autoscaler.serve_policy import RelayTarget
from fermata.autoscaler.window import Window
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import known_profiles
from fermata.deployments.control.scaling import ScalingLoop, kept_plan, placed_models, reading_of
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND
from fermata.partitioner.plan import Plan
from fermata.profiles.profile import linear
from fermata.router.telemetry.snapshot import PlacementSnapshot, RouterSnapshot

APPLICATIONS = [
    {
        "name": name,
        "slo_ms": 100,
        "input": {"name": "input", "dtype": "FP32", "shape": [4]},
        "variants": [{"name": f"{name}-1", "model": "emulated", "alpha_ms": 1, "beta_ms": 5}],
    }
    for name in ("a", "b")
]


def snapshot(at_s: float, busy_s: float, **counts: tuple[int, int, int]) -> RouterSnapshot:
    """Two sub-clusters of two backends; counts are (requests, good, late) by application."""
    return router(
        {
            name: application(requests=asked, good=good, late=late, dropped={"cancelled": 9})
            for name, (asked, good, late) in counts.items()
        },
        up_ns=int(at_s * SECOND),
        ranks=[
            sub_cluster(
                backends=2,
                backend_up_ns=int(2 * at_s * SECOND),
                backend_busy_ns=int(busy * SECOND),
            )
            for busy in (busy_s, 0.0)
        ],
        placement=PlacementSnapshot({"a": 0, "b": 1}, {}, []),
    )


def windows_between(
    before: RouterSnapshot, after: RouterSnapshot, targets: list[int]
) -> list[Window]:
    readings = reading_of(before), reading_of(after)
    return [window_between(*readings, number, target) for number, target in enumerate(targets)]


def test_windows_are_differences_by_sub_cluster() -> None:
    before = snapshot(10, 5, a=(100, 90, 10), b=(0, 0, 0))
    after = snapshot(20, 20, a=(300, 250, 50), b=(50, 50, 0))
    first, second = windows_between(before, after, [4, 2])
    assert (first.backends, first.busy, first.requests, first.bad) == (2.0, 1.5, 200, 40)
    assert (first.up, first.starting) == (2, 2)
    assert (second.requests, second.bad, second.busy, second.starting) == (50, 0, 0.0, 0)
    rule = _scaled().autoscaler.options().rule
    assert demand_of(rule, first) == pytest.approx(1.5 / 0.8)


def test_cancelled_requests_are_nobodys_fault() -> None:
    blank = application()
    before = replace(snapshot(0, 0), applications={"a": blank, "b": blank})
    after = snapshot(10, 1, a=(9, 0, 0), b=(0, 0, 0))
    assert windows_between(before, after, [2, 2])[0].bad == 0


def test_rates_are_requests_per_second() -> None:
    before = snapshot(10, 0, a=(100, 0, 0), b=(0, 0, 0))
    after = snapshot(14, 0, a=(300, 0, 0), b=(2, 0, 0))
    assert rates_between(reading_of(before), reading_of(after)) == {"a": 50.0, "b": 0.5}


def test_an_accuracy_to_hold_is_read_and_planned_for() -> None:
    variants = [
        {"name": name, "model": "emulated", "latency_ms": [run_ms], "accuracy": accuracy}
        for name, run_ms, accuracy in (("small", 10, 0.6), ("large", 50, 0.8))
    ]
    told = {**APPLICATIONS[0], "policy": "central-queue", "variants": variants}
    config = read_config(
        {
            "applications": [told],
            "backend": {"count": 3, "device": "emulated"},
            "autoscaler": {"accuracy": 0.7},
        }
    )
    models = placed_models(config, known_profiles(config))
    goals = {each.name: each for each in models}
    whole = sub_cluster(backends=4, backend_up_ns=40 * SECOND, backend_busy_ns=38 * SECOND)
    shown = {
        "ranks": [whole],
        "placement": PlacementSnapshot({"a": 0}, {}, []),
        "busy_ns": {"a": 38 * SECOND},
        "up_ns": 10 * SECOND,
    }
    counts = application(requests=1000, good=1000, rated=1000, expected_right=690.0)
    after = reading_of(router({"a": counts}, **shown))
    before = reading_of(router({"a": application()}, ranks=[sub_cluster(backends=4)], up_ns=0))
    seen = window_between(replace(before, plan=after.plan), after, 0, 4, goals)
    # 100 requests a second in batches of one: half of them at 10 ms, half at 50.
    assert demand_of(config.autoscaler.options().rule, seen) == pytest.approx(3.0, abs=0.01)
    assert seen.answers.lacking == pytest.approx((10.0,))


def _scaled(**values: object) -> Any:
    return read_config(
        {
            "applications": APPLICATIONS,
            "backend": {"count": 3, "device": "emulated"},
            "autoscaler": {"minimum": 1, "maximum": 8},
            "epochs": {"sub_clusters": 2, **values},
        }
    )


def test_the_last_plan_is_kept_and_read(tmp_path: Any) -> None:
    path = tmp_path / "plan.json"
    profiles = {"a-1": linear("a", 1, 5), "b-1": linear("b", 1, 5)}
    loop = ScalingLoop(_scaled(plan_file=str(path)), profiles, None, None)  # type: ignore[arg-type]
    assert kept_plan(loop.epochs) is None
    loop._keep_plan(Plan({"a": 1, "b": 0}))
    assert kept_plan(loop.epochs) == Plan({"a": 1, "b": 0})
    path.write_text("[]")
    assert kept_plan(loop.epochs) is None
    path.unlink()
    path.mkdir()
    assert kept_plan(loop.epochs) is None


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="minimum=9 is above maximum=8"):
        read_config({"applications": APPLICATIONS, "autoscaler": {"minimum": 9, "maximum": 8}})
    with pytest.raises(ConfigError, match="to_zero"):
        read_config({"applications": APPLICATIONS, "autoscaler": {"minimum": 0, "maximum": 8}})


@pytest.mark.parametrize(("to_zero", "lowest"), [(False, 2), (True, 0)])
def test_serve_keeps_the_minimum_unless_all_may_go(to_zero: bool, lowest: int) -> None:
    spec = {"minimum": 2, "maximum": 8, "to_zero": to_zero}
    config = read_config({"applications": APPLICATIONS, "autoscaler": spec})
    assert config.autoscaler is not None
    assert config.autoscaler.fewest == lowest


class Context:
    target_num_replicas = 3
    capacity_adjusted_min_replicas = 1
    capacity_adjusted_max_replicas = 5


def test_the_relay_keeps_what_is_until_it_is_told() -> None:
    policy = RelayTarget(("router",), "space")
    policy.asking = policy  # type: ignore[assignment]
    assert policy(Context()) == (3, {})
    policy.target = 4
    assert policy(Context()) == (4, {})
    policy.target = 99
    assert policy(Context()) == (5, {})


def test_the_relay_believes_the_router_that_leads() -> None:
    policy = RelayTarget(("first", "second"), "space")
    policy.on_answers([(7, 4), (6, 2)])
    assert policy.decide(Context()) == 4
    policy.on_answers([(8, None)])
    assert policy.decide(Context()) == 3
    policy.on_answers([])
    assert policy.decide(Context()) == 3


def test_what_was_released_and_is_still_there_counts_as_gone() -> None:
    before = snapshot(10, 5, a=(0, 0, 0), b=(0, 0, 0))
    after = snapshot(20, 10, a=(9, 9, 0), b=(0, 0, 0))
    first, second = windows_between(before, after, [1, 3])
    assert (first.up, first.starting) == (1, 0)
    assert (second.up, second.starting) == (2, 1)
