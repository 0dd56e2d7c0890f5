"""Limits that the targets of all sub-clusters keep together, whatever each of them wants."""

from hypothesis import given
from hypothesis import strategies as st

from fermata.autoscaler.control_loop import ControlLoop, SetTargets
from fermata.autoscaler.options import AutoscalerOptions, EpochOptions
from fermata.autoscaler.readings import ApplicationReading, ClusterReading, SubClusterReading
from fermata.autoscaler.rule import RuleOptions
from fermata.autoscaler.sub_cluster_limits import floors, share_out, spread
from fermata.foundation.units import SECOND
from fermata.partitioner.plan import PlacedModel, Plan

parts = st.lists(st.tuples(st.integers(0, 60), st.floats(0, 80)), min_size=1, max_size=8)


@given(st.integers(0, 500), st.integers(1, 20))
def test_parts_of_a_count_are_even_and_whole(count: int, among: int) -> None:
    shares = spread(count, among)
    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1
    assert sum(floors(count, among)) >= count


@given(parts, st.integers(0, 40), st.integers(0, 100))
def test_the_sum_is_within_minimum_and_maximum(
    rows: list[tuple[int, float]], minimum: int, more: int
) -> None:
    maximum = max(1, minimum + more)
    targets, demands = [row[0] for row in rows], [row[1] for row in rows]
    given_out = share_out(targets, demands, minimum, maximum)
    assert sum(given_out) <= maximum
    assert all(each >= 0 for each in given_out)
    if any(targets):
        assert sum(given_out) >= min(minimum, maximum)
    else:
        assert not any(given_out)
    if minimum <= sum(targets) <= maximum:
        assert given_out == tuple(targets)
    elif sum(targets) > maximum:
        assert sum(given_out) == maximum
        assert all(mine <= asked for mine, asked in zip(given_out, targets, strict=True))


@st.composite
def stories(draw: st.DrawFn) -> tuple[ControlLoop, list[ClusterReading]]:
    """A loop over some sub-clusters, and windows of any load, with moves and new leaders."""
    count = draw(st.integers(1, 3))
    minimum = draw(st.integers(1, 6))
    rule = RuleOptions(
        minimum=minimum,
        maximum=minimum + draw(st.integers(0, 9)),
        to_zero=draw(st.booleans()),
        zero_after=2,
    )
    names = [f"m{number}" for number in range(4)]
    models = [PlacedModel(name, 1.0, 1) for name in names]
    loop = ControlLoop(
        AutoscalerOptions(rule), EpochOptions(sub_clusters=count, every_ns=1 << 60), models
    )
    seen: list[ClusterReading] = []
    good, bad, busy, term = dict.fromkeys(names, 0), dict.fromkeys(names, 0), [0] * count, 1
    plan = Plan({name: number % count for number, name in enumerate(names)})
    for step in range(draw(st.integers(2, 12))):
        for name in names:
            good[name] += draw(st.sampled_from((0, 0, 1, 100)))
            bad[name] += draw(st.sampled_from((0, 0, 50)))
        busy = [each + draw(st.integers(0, 40)) * SECOND for each in busy]
        if draw(st.integers(0, 4)) == 0:
            plan = Plan({name: draw(st.integers(0, count - 1)) for name in names})
        if draw(st.integers(0, 6)) == 0:
            term += 1
        counts = {name: ApplicationReading(9, good[name], bad[name]) for name in names}
        ranks = tuple(
            SubClusterReading(
                draw(st.integers(0, 9)), 4 * step * SECOND, each, draw(st.floats(0, 20))
            )
            for each in busy
        )
        at_ns = 10 * SECOND * step + draw(st.integers(0, 9)) * SECOND
        seen.append(ClusterReading(at_ns, term, counts, ranks, plan))
    return loop, seen


@given(stories())
def test_every_target_of_a_loop_is_within_its_limits(
    story: tuple[ControlLoop, list[ClusterReading]],
) -> None:
    loop, seen = story
    assert loop.autoscaler is not None
    rule = loop.autoscaler.rule
    # More sub-clusters than backends may not be had: each wants one.
    lowest = min(rule.maximum, max(rule.minimum, 1))
    loop.on_start(seen[0].at_ns, seen[0], rule.minimum)
    for reading in seen[1:]:
        ended = reading.at_ns >= loop.window_ends_at_ns
        loop.on_reading(reading.at_ns, reading)
        effects = loop.take_effects()
        targets = [each.targets for each in effects if isinstance(each, SetTargets)]
        assert len(targets) >= ended
        for each in targets:
            assert sum(each) <= rule.maximum
            assert sum(each) >= lowest or (rule.to_zero and sum(each) == 0)
