"""The autoscaler's rule, window by window."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from fermata.autoscaler.cost import HOUR_NS, allocate_cost
from fermata.autoscaler.evidence import Ended
from fermata.autoscaler.pool_shares import covering, handed_out
from fermata.autoscaler.rule import (
    RuleOptions,
    RuleState,
    ScalingAdvice,
    advise,
    demand_of,
)
from fermata.autoscaler.sub_cluster_limits import floors, share_out, spread
from fermata.autoscaler.window import Window
from fermata.router.policies.ownership import Ownership

PAPER = RuleOptions(idle=0.0, release_after=1, cool_down=0, release_band=0.0)


def window(backends: int, idle: float = 0.0, bad: float = 0.0, **values: object) -> Window:
    requests = 10_000
    made = Window(backends, backends * (1 - idle), requests, round(bad * requests), up=backends)
    return replace(made, **values)  # type: ignore[arg-type]


def after(options: RuleOptions, windows: list[Window]) -> list[ScalingAdvice]:
    """The advice of each window, none of it followed."""
    state, given = RuleState(), []
    for each in windows:
        given.append(advise(options, state, each))
        state = given[-1].state
    return given


@pytest.mark.parametrize(("bad", "more"), [(0.5, 20), (0.2, 5), (0.1, 3), (0.02, 1)])
def test_allocates_n_r_over_1_minus_r(bad: float, more: int) -> None:
    assert advise(PAPER, RuleState(), window(20, bad=bad)).change == more


@pytest.mark.parametrize(("idle", "less"), [(0.5, 10), (0.26, 5), (0.04, 0)])
def test_releases_n_f(idle: float, less: int) -> None:
    assert advise(PAPER, RuleState(), window(20, idle=idle)).change == -less


def test_a_bad_rate_below_the_threshold_allocates_nothing() -> None:
    assert advise(PAPER, RuleState(), window(20, bad=0.009)).change == 0


def test_some_idleness_is_kept() -> None:
    # 10 busy backends and 5 % idle beside them: 10 / 0.95 = 10.5.
    options = replace(PAPER, idle=0.05)
    assert advise(options, RuleState(), window(20, idle=0.5)).target == 11


def test_what_is_on_its_way_is_not_asked_for_again() -> None:
    assert advise(PAPER, RuleState(), window(20, bad=0.5, starting=20)).change == 0


def test_releases_only_what_every_recent_window_would_have() -> None:
    options = replace(PAPER, release_after=3)
    given = after(options, [window(20, idle=idle) for idle in (0.5, 0.25, 0.5)])
    assert [each.change for each in given] == [0, 0, -5]


def test_releases_nothing_soon_after_a_change() -> None:
    options = replace(PAPER, cool_down=2)
    given = after(options, [window(20, idle=0.5)] * 4)
    assert [each.change for each in given] == [0, 0, -10, 0]


def test_small_gains_are_left_alone() -> None:
    options = replace(PAPER, release_band=0.1)
    assert advise(options, RuleState(), window(20, idle=0.1)).change == 0
    assert advise(options, RuleState(), window(20, idle=0.15)).change == -3


def test_minimum_and_maximum_hold() -> None:
    options = replace(PAPER, minimum=4, maximum=24)
    assert advise(options, RuleState(), window(20, bad=0.5)).target == 24
    assert advise(options, RuleState(), window(20, idle=0.99)).target == 4


def test_the_last_backend_goes_only_when_allowed_and_after_long_silence() -> None:
    silent = Window(1.0, 0.0, 0, 0, up=1)
    assert after(PAPER, [silent] * 20)[-1].target == 1
    given = after(replace(PAPER, to_zero=True, zero_after=3), [silent] * 3)
    assert [each.target for each in given] == [1, 1, 0]


def test_wakes_from_zero_by_what_the_sources_want() -> None:
    options = replace(PAPER, to_zero=True)
    asked = Window(0.0, 0.0, 50, 50, wanted=2.4, up=0)
    assert advise(options, RuleState(), asked).target == 3
    assert advise(options, RuleState(), replace(asked, wanted=0.0)).target == 1


def test_demand_without_any_good_request_is_the_sources_own() -> None:
    assert demand_of(PAPER, Window(8.0, 8.0, 1000, 1000, wanted=30.0)) == 30.0


def test_the_least_that_sources_need_counts_until_it_proves_wrong() -> None:
    at_ease = window(30, idle=0.1, wanted=20.0)
    assert demand_of(PAPER, at_ease) == 20.0
    assert demand_of(PAPER, replace(at_ease, bad=1000)) == pytest.approx(30.0)


@pytest.mark.parametrize(("busy", "estimate"), [(2.0, 15.0), (5.0, 15.0), (0.5, 16.0)])
def test_idle_backends_are_released_whatever_the_sources_estimate(
    busy: float, estimate: float
) -> None:
    seen = window(16, idle=1 - busy / 16, wanted=estimate)
    assert advise(PAPER, RuleState(), seen).target == math.ceil(1.25 * busy)
    options, state, backends = RuleOptions(), RuleState(), 16
    history: list[int] = []
    for _ in range(20):
        given = advise(options, state, window(backends, idle=1 - busy / backends, wanted=estimate))
        state, backends = given.state, given.target
        history.append(backends)
    # One release, and an estimate that was not borne out brings nothing back.
    assert history[-1] <= math.ceil(1.5 * busy) + 1
    assert len({*history}) == 2


def test_a_rate_that_has_just_risen_is_met_before_backends_are_busy_with_it() -> None:
    calm = window(10, idle=0.2, wanted=8.0)
    risen = window(10, idle=0.1, wanted=16.0)
    assert after(RuleOptions(), [calm, calm, risen])[-1].target >= 17


def pools(*parts: Window) -> Window:
    """A sub-cluster of these pools, each with backends of its own."""
    whole = [sum(each) for each in zip(*((p.backends, p.busy) for p in parts), strict=True)]
    counts = [sum(each) for each in zip(*((p.requests, p.bad, p.up) for p in parts), strict=True)]
    return Window(whole[0], whole[1], counts[0], counts[1], up=counts[2], pools=parts)


def test_every_pool_gets_what_it_needs() -> None:
    # The second needs 3 of 4, the first 1 of 4: backends come in turn, so that takes 6.
    seen = pools(window(4, idle=0.75), window(4, idle=0.25))
    assert advise(PAPER, RuleState(), seen).target == 6
    # A pool that is bad asks for more, though the other is idle: 4 busy, half of them lost.
    seen = pools(window(4, idle=1.0), window(4, idle=0.0, bad=0.5))
    assert advise(PAPER, RuleState(), seen).target == 16


def test_a_pool_without_requests_keeps_a_backend() -> None:
    silent = Window(4.0, 0.0, 0, 0, up=4)
    assert advise(PAPER, RuleState(), pools(silent, silent, silent)).target == 3
    given = after(replace(PAPER, to_zero=True, zero_after=2), [pools(silent, silent)] * 2)
    assert [each.target for each in given] == [2, 0]


def test_backends_are_handed_out_as_their_owners_are_given_them() -> None:
    # One each first, then by share.
    assert handed_out([1.0, 3.0, 2.0], 3) == [1, 1, 1]
    assert handed_out([1.0, 3.0, 2.0], 12) == [2, 6, 4]
    assert covering((1.0, 1.0), (1, 1), 9) == 2
    assert covering((1.0, 1.0), (1, 3), 9) == 6
    assert covering((1.0, 1.0), (1, 30), 9) == 9
    # The small share has its first backend before the large one has two.
    assert covering((1.0, 100.0), (1, 1), 9) == 2


def test_the_backend_that_was_given_last_can_be_spared_first() -> None:
    shares: dict[int | None, float] = {0: 1.0, None: 3.0, 4: 2.0}
    ownership = Ownership(shares)
    given = [ownership.take(backend) for backend in range(20)]
    for backend in reversed(range(20)):
        assert ownership.richest() == given[backend]
        ownership.release(backend)


def test_one_application_that_fares_badly_among_many_is_noticed() -> None:
    starved = Ended((9000.0, 100.0), (5.0, 60.0))
    seen = window(4, idle=0.5, bad=0.0065, ended=starved)
    given = after(RuleOptions(), [seen] * 4)
    # After a change, evidence has to gather anew.
    assert [each.change for each in given] == [0, 1, 0, 1]
    fair = replace(seen, ended=Ended((9000.0, 100.0), (64.0, 1.0)))
    assert max(each.change for each in after(RuleOptions(), [fair] * 4)) == 0


def test_chance_is_no_evidence_against_any_of_many_applications() -> None:
    rng = random.Random(4)
    ended = Ended()
    alarms = 0
    for _ in range(200):
        bad = [float(sum(rng.random() < 0.005 for _ in range(300))) for _ in range(20)]
        ended = ended.and_then(Ended((300.0,) * 20, tuple(bad)))
        alarms += ended.is_bad(0.01)
    assert alarms <= 2


def test_a_number_that_was_too_few_is_not_tried_again_while_as_many_requests_come() -> None:
    options, state = RuleOptions(), RuleState(calm=3)
    bad = Window(1.0, 0.2, 600, 30, up=1)
    raised = advise(options, state, bad)
    assert raised.target == 2
    state = raised.state
    for _ in range(30):
        given = advise(options, state, Window(2.0, 0.2, 600, 0, up=2))
        assert given.target == 2
        state = given.state
    for _ in range(options.release_after):
        given = advise(options, state, Window(2.0, 0.1, 300, 0, up=2))
        state = given.state
    assert given.target == 1


def test_a_release_that_was_too_much_is_learnt_from_at_once() -> None:
    options, state, backends, history = RuleOptions(), RuleState(), 8, list[int]()
    for _ in range(24):
        # One backend loses a tenth, two lose nothing; the sources say that one is enough.
        bad = 60 if backends == 1 else 0
        given = advise(options, state, Window(backends, 0.4, 600, bad, wanted=0.4, up=backends))
        state, backends = given.state, given.target
        history.append(backends)
    assert history == [8, 8, 1, *[2] * 21]


def test_a_load_that_shrinks_with_its_backends_is_released_ever_more_slowly() -> None:
    options, state, backends, history = RuleOptions(), RuleState(), 64, list[int]()
    for _ in range(40):
        # A policy that spends idle time on accuracy: always three quarters busy.
        busy = 0.75 * backends
        seen = Window(backends, busy, 600, 0, wanted=busy, untold=busy, up=backends)
        given = advise(options, state, seen)
        state, backends = given.state, given.target
        history.append(backends)
    assert sum(a != b for a, b in pairwise(history)) <= 2


def test_a_load_that_grows_with_its_backends_is_followed_once() -> None:
    options, state, backends, history = RuleOptions(maximum=99), RuleState(), 8, list[int]()

    def step(requests: int, bad: int = 0) -> None:
        nonlocal state, backends
        # A policy that spends idle time on accuracy: always nearly busy.
        busy = 0.99 * backends
        seen = Window(backends, busy, requests, bad, wanted=busy, untold=busy, up=backends)
        given = advise(options, state, seen)
        state, backends = given.state, given.target
        history.append(backends)

    for _ in range(20):
        step(600)
    once = history[0]
    assert once > 8
    assert {*history} == {once}
    step(700)
    assert backends > once, "more requests"
    twice = backends
    step(700)
    step(700)
    step(700, bad=30)
    assert backends > twice, "bad requests"


def test_bad_requests_beside_idle_backends_teach_to_keep_more() -> None:
    options = RuleOptions(release_after=1, cool_down=0)
    first = after(options, [window(20, idle=0.05), window(20, idle=0.2, bad=0.05)])[-1]
    assert first.state.taught == pytest.approx(0.2 + 0.03 - 0.05)
    # The same load, 16 / 0.95, on more backends is no reason to go back to where it was bad.
    again = advise(options, first.state, window(22, idle=1 - 16.84 / 22))
    assert again.change == 0


def test_what_bursts_taught_is_forgotten_slowly() -> None:
    state = RuleState(taught=0.2, calm=5)
    options = RuleOptions()
    for _ in range(200):
        state = advise(options, state, window(20, idle=0.1)).state
    assert 0.05 < state.taught < 0.1


def test_a_rising_demand_is_met_where_it_will_be() -> None:
    options = RuleOptions(lead=2.0, idle=0.02)
    given = after(options, [window(50, idle=1 - busy / 50) for busy in (30, 35, 40, 45)])
    # 5 more each window: 50 and 55 two windows on, and 2 % idle beside them.
    assert [each.target for each in given[2:]] == [52, 57]


def test_a_constant_load_settles_and_stays() -> None:
    options, state, backends = RuleOptions(), RuleState(), 64
    history: list[int] = []
    for _ in range(30):
        busy = 19.2
        given = advise(options, state, Window(backends, busy, 10_000, 0, up=backends))
        state, backends = given.state, given.target
        history.append(backends)
    assert history[-1] == 21
    assert len(set(history)) == 2


def test_everyone_gets_what_fits() -> None:
    assert share_out([3, 4], [3, 4], 2, 10) == (3, 4)


def test_what_does_not_fit_is_shared_by_demand() -> None:
    assert share_out([30, 10, 0], [30, 10, 0], 3, 20) == (15, 5, 0)


def test_a_count_is_spread_evenly() -> None:
    assert spread(7, 3) == (3, 2, 2)
    assert spread(1, 2) == (1, 0)


def test_the_minimum_is_divided_over_sub_clusters() -> None:
    assert floors(6, 3) == (2, 2, 2)
    assert floors(7, 3) == (3, 2, 2)
    # One without a backend would serve none of its models.
    assert floors(1, 3) == (1, 1, 1)
    assert floors(0, 3) == (0, 0, 0)


def test_more_sub_clusters_than_backends_stay_within_the_maximum() -> None:
    assert share_out([1, 1, 1], [0.2, 0.5, 0.1], 1, 2) == (1, 1, 0)


def test_sub_clusters_in_use_keep_the_minimum_of_those_that_released_all() -> None:
    assert share_out([2, 0, 2], [1.0, 0.0, 3.0], 6, 10) == (2, 0, 4)
    assert share_out([0, 0, 0], [0.0, 0.0, 0.0], 6, 10) == (0, 0, 0)


def test_idle_time_is_billed_in_proportion_to_use() -> None:
    first, second = allocate_cost({"a": HOUR_NS, "b": 3 * HOUR_NS}, 8 * HOUR_NS, price_per_hour=2.0)
    assert (first.backend_hours, first.busy_hours, first.cost) == (2.0, 1.0, 4.0)
    assert (second.backend_hours, second.cost) == (6.0, 12.0)


def test_an_idle_hour_is_billed_alike() -> None:
    parts = allocate_cost({"a": 0.0, "b": 0.0}, 2 * HOUR_NS, 1.0)
    assert [part.cost for part in parts] == [1.0, 1.0]
