"""Arrival processes: the same seed gives the same list, and rates are as asked for."""

from typing import Any

import numpy as np
import pytest

from fermata.foundation.units import SECOND, ms, seconds
from fermata.simulator.arrivals import Arrivals, generate, map_rate_rps
from fermata.simulator.scenario.scenario import read_scenario

VARIANT = {"name": "net", "alpha_ms": 1, "beta_ms": 4}
MAP = {"process": "map", "d0": [[-110.0, 10.0], [5.0, -15.0]], "d1": [[100.0, 0.0], [0.0, 10.0]]}
TRACE = {"process": "trace", "rps": [100, 300, 200], "step_s": 2}


def arrive(applications: list[dict[str, Any]] | None = None, **top: Any) -> Arrivals:
    rows = applications or [{"name": "one", "slo_ms": 50}]
    data = {
        "backends": 1,
        "warmup_s": 1,
        "duration_s": 9,
        "applications": [{"variants": [VARIANT], **row} for row in rows],
        **top,
    }
    return generate(read_scenario(data))


def per_second(arrivals: Arrivals, start_s: float, end_s: float) -> float:
    at_ns = arrivals.at_ns
    inside = (at_ns >= seconds(start_s)) & (at_ns < seconds(end_s))
    return float(inside.sum()) / (end_s - start_s)


@pytest.mark.parametrize(
    "process",
    [
        {"process": "poisson"},
        {"process": "gamma", "shape": 0.3},
        {"process": "gamma", "shape": 4},
        MAP,
        TRACE,
        {"process": "periodic", "phase": "random"},
    ],
    ids=lambda process: f"{process['process']}-{process.get('shape', '')}",
)
def test_same_seed_same_arrivals_at_the_asked_rate(process: dict[str, Any]) -> None:
    one = arrive(arrivals=process, rate_rps=1000, seed=3)
    again = arrive(arrivals=process, rate_rps=1000, seed=3)
    other = arrive(arrivals=process, rate_rps=1000, seed=4)
    assert np.array_equal(one.at_ns, again.at_ns)
    assert not np.array_equal(one.at_ns, other.at_ns)
    assert bool((np.diff(one.at_ns) >= 0).all())
    assert one.at_ns[0] >= 0
    assert one.at_ns[-1] < seconds(10)
    assert per_second(one, 1, 10) == pytest.approx(1000, rel=0.1)


def test_gaps_have_the_variance_of_their_process() -> None:
    def spread(**process: Any) -> float:
        gaps = np.diff(arrive(arrivals=process, rate_rps=2000).at_ns)
        return float(gaps.std() / gaps.mean())

    # Gamma gaps vary by one over the root of the shape; shape 1 is Poisson.
    assert spread(process="poisson") == pytest.approx(1.0, rel=0.05)
    assert spread(process="gamma", shape=1) == pytest.approx(1.0, rel=0.05)
    assert spread(process="gamma", shape=0.25) == pytest.approx(2.0, rel=0.1)
    assert spread(process="gamma", shape=4) == pytest.approx(0.5, rel=0.05)


def test_rate_of_a_markovian_process() -> None:
    # The phases change at 10 and 5 per second, so it is in the first a third of the time:
    # 100 / 3 + 10 * 2 / 3 = 40.
    d0, d1 = np.array(MAP["d0"]), np.array(MAP["d1"])
    assert map_rate_rps(d0, d1) == pytest.approx(40.0)
    assert map_rate_rps(np.array([[-7.0]]), np.array([[7.0]])) == pytest.approx(7.0)


def test_markovian_process_knows_its_own_rate() -> None:
    arrivals = arrive(arrivals=MAP, duration_s=60)
    assert per_second(arrivals, 1, 61) == pytest.approx(40.0, rel=0.25)


def test_trace_goes_step_by_step_and_wraps() -> None:
    arrivals = arrive(arrivals=TRACE, duration_s=9)
    rates = [per_second(arrivals, start_s, start_s + 2) for start_s in (1, 3, 5, 7)]
    assert rates == pytest.approx([100, 300, 200, 100], rel=0.25)
    # Warm-up at the first step's rate, and the last second at the second's.
    assert per_second(arrivals, 0, 1) == pytest.approx(100, rel=0.3)
    assert per_second(arrivals, 9, 10) == pytest.approx(300, rel=0.25)


def test_rate_rescales_a_trace() -> None:
    arrivals = arrive(arrivals=TRACE, rate_rps=2000, duration_s=6)
    rates = [per_second(arrivals, start_s, start_s + 2) for start_s in (1, 3, 5)]
    assert rates == pytest.approx([1000, 3000, 2000], rel=0.1)


def test_popularity_shares_the_rate() -> None:
    rows = [{"name": "a", "slo_ms": 50, "weight": 3}, {"name": "b", "slo_ms": 80}]
    arrivals = arrive(rows, rate_rps=1000, popularity="weights")
    share = float((arrivals.application == 0).mean())
    assert share == pytest.approx(0.75, abs=0.02)
    assert set(arrivals.slo_ns[arrivals.application == 1].tolist()) == {ms(80)}
    assert set(arrivals.client.tolist()) == {0}
    rows = [{"name": "a", "slo_ms": 50}, {"name": "b", "slo_ms": 80}]
    arrivals = arrive(rows, rate_rps=1000, popularity={"zipf": 1})
    assert float((arrivals.application == 0).mean()) == pytest.approx(2 / 3, abs=0.02)


def test_adding_an_application_leaves_the_others_alone() -> None:
    first = {"name": "a", "slo_ms": 50, "weight": 1}
    alone = arrive([first], rate_rps=100, popularity="weights")
    both = arrive(
        [first, {"name": "b", "slo_ms": 50, "weight": 1}], rate_rps=200, popularity="weights"
    )
    assert np.array_equal(both.at_ns[both.application == 0], alone.at_ns)


CAMERAS = {
    "name": "cameras",
    "slo_ms": 50,
    "clients": [
        {"count": 2, "fps": 10, "priority": 1, "weight": 2},
        {"count": 1, "fps": 5, "slo_ms": 80},
    ],
}


def test_locked_cameras_send_together() -> None:
    arrivals = arrive([CAMERAS], arrivals={"process": "periodic"}, warmup_s=0, duration_s=1)
    frames = list(
        zip(
            (arrivals.at_ns // ms(1)).tolist(),
            arrivals.client.tolist(),
            arrivals.slo_ns.tolist(),
            arrivals.priority.tolist(),
            strict=True,
        )
    )
    assert frames[:5] == [
        (0, 1, ms(50), 1),
        (0, 2, ms(50), 1),
        (0, 3, ms(80), 0),
        (100, 1, ms(50), 1),
        (100, 2, ms(50), 1),
    ]
    assert len(frames) == 10 + 10 + 5
    assert arrivals.weights == {1: 2, 2: 2, 3: 1}


def test_staggered_cameras_send_in_turn() -> None:
    arrivals = arrive(
        [{"name": "a", "slo_ms": 50, "clients": [{"count": 4, "fps": 10}]}],
        arrivals={"process": "periodic", "phase": "staggered"},
        warmup_s=0,
        duration_s=1,
    )
    assert (arrivals.at_ns[:5] // ms(1)).tolist() == [0, 25, 50, 75, 100]
    assert arrivals.client[:5].tolist() == [1, 2, 3, 4, 1]


def test_random_phases_keep_the_period() -> None:
    arrivals = arrive([CAMERAS], arrivals={"process": "periodic", "phase": "random"})
    mine = arrivals.at_ns[arrivals.client == 3]
    assert 0 < mine[0] < SECOND // 5
    assert np.abs(np.diff(mine) - SECOND // 5).max() <= 1


def test_rate_rescales_the_frame_rates() -> None:
    arrivals = arrive([CAMERAS], arrivals={"process": "periodic"}, rate_rps=100)
    # 25 frames a second made 100: the third camera sends 20.
    assert per_second(arrivals, 1, 10) == pytest.approx(100, rel=0.02)
    assert (arrivals.client == 3).sum() == 200


def test_periodic_without_clients_is_one_stream_per_application() -> None:
    rows = [{"name": "a", "slo_ms": 50, "weight": 3}, {"name": "b", "slo_ms": 50}]
    arrivals = arrive(
        rows, arrivals={"process": "periodic"}, rate_rps=40, popularity="weights", warmup_s=0
    )
    assert [(arrivals.application == index).sum() for index in (0, 1)] == [270, 90]


def test_clients_of_a_random_process_share_it_by_frame_rate() -> None:
    arrivals = arrive([CAMERAS], rate_rps=1000)
    counts = np.bincount(arrivals.client, minlength=4)[1:]
    assert (counts / counts.sum()).tolist() == pytest.approx([0.4, 0.4, 0.2], abs=0.02)
    assert set(arrivals.slo_ns[arrivals.client == 3].tolist()) == {ms(80)}
    assert set(arrivals.priority[arrivals.client == 1].tolist()) == {1}


def test_clients_are_numbered_across_applications() -> None:
    other = {"name": "other", "slo_ms": 50, "clients": [{"count": 2, "fps": 1}]}
    arrivals = arrive([CAMERAS, other], arrivals={"process": "periodic"})
    assert set(arrivals.client[arrivals.application == 1].tolist()) == {4, 5}


NOBODY = [{"name": "a", "slo_ms": 50, "weight": 0}, {"name": "b", "slo_ms": 50}]


@pytest.mark.parametrize("process", [{"process": "poisson"}, {"process": "gamma", "shape": 2}])
def test_application_without_a_share_has_no_arrivals(process: dict[str, Any]) -> None:
    arrivals = arrive(NOBODY, arrivals=process, popularity="weights", rate_rps=100)
    assert set(arrivals.application.tolist()) == {1}


@pytest.mark.parametrize("process", [{"process": "periodic"}, MAP], ids=["periodic", "map"])
def test_application_without_a_share_has_no_arrivals_of_any_process(
    process: dict[str, Any],
) -> None:
    arrivals = arrive(NOBODY, arrivals=process, popularity="weights", rate_rps=100)
    assert set(arrivals.application.tolist()) == {1}
