"""Backends that fail are ejected and given back; bad inputs eject nobody. l(b) = 4 + b ms."""

import random

import pytest
from fleet_world import ERROR, FleetWorld
from router_world import TABLE, rid
from snapshots import snapshot

from fermata.foundation.units import ms, seconds
from fermata.router.health.outliers import OutlierRules
from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import Done, Dropped, FleetStatus, Ready, Run

POLICIES = ("eager", "deferred", "timeout", "partitioned", "central-queue", "routing", "ramsis")
BUSY_NS = ms(0.8)
"""Between arrivals: batches of one keep six of eight backends at work."""
QUIET_NS = ms(10)
RULES = OutlierRules()


# A broken backend


@pytest.mark.parametrize("policy", ["eager", "deferred"])
def test_the_lowest_backend_fails_at_once(policy: str) -> None:
    world = FleetWorld(8, policy, broken=[0])
    world.send(4000, BUSY_NS)
    world.end()
    assert len(world.bad) <= 20
    assert world.ejected == [0]
    assert set(snapshot(world.router)["ejected_backends"]) == {0}
    assert world.frontend.take(FleetStatus)[-1].backends == 7


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("broken", [0, 3, 7])
def test_any_backend_that_policies_give_work_is_ejected(policy: str, broken: int) -> None:
    world = FleetWorld(8, policy, broken=[broken])
    world.send(2000, BUSY_NS)
    world.end()
    assert len(world.bad) <= 20
    used = world.machines[broken].ran
    assert world.ejected == ([broken] if used else [])


def test_an_idle_fleet_ejects_it_too() -> None:
    world = FleetWorld(8, broken=[0])
    world.send(300, QUIET_NS)
    world.end()
    assert not world.bad
    assert world.ejected == [0]


@pytest.mark.parametrize("policy", ["eager", "timeout"])
def test_errors_that_leave_no_time_for_a_retry_count_too(policy: str) -> None:
    world = FleetWorld(8, policy, broken=[0])
    world.machines[0].fails_after_ns = TABLE[0]
    world.send(1000, QUIET_NS, slo_ns=TABLE[0] + ms(4))
    world.end()
    assert len(world.bad) <= 20
    assert world.ejected == [0]


# Several


@pytest.mark.parametrize("policy", ["eager", "timeout", "ramsis"])
@pytest.mark.parametrize("broken", [(0, 1, 2, 3), (4, 5, 6, 7), (0, 2, 4, 6)])
def test_half_of_the_fleet_is_broken(policy: str, broken: tuple[int, ...]) -> None:
    world = FleetWorld(8, policy, broken=broken)
    world.send(2000, ms(1.4))
    world.end()
    assert len(world.bad) <= 20
    # The highest numbers are given work only while all others are busy.
    assert world.ejected == [each for each in broken if len(world.machines[each].ran) > 4]


def test_more_than_half_is_broken() -> None:
    world = FleetWorld(8, broken=range(6))
    world.send(2000, ms(3))
    world.end()
    assert len(world.bad) <= 40
    # Half of them soon, the others only when nobody can doubt it any more.
    assert set(world.ejected) <= set(range(6))
    world.bad.clear()
    world.good.clear()
    world.sent = 0
    world.send(200, ms(3))
    world.end()
    assert not world.bad


@pytest.mark.parametrize("policy", POLICIES)
def test_all_are_broken(policy: str) -> None:
    world = FleetWorld(8, policy, broken=range(8))
    world.send(400, BUSY_NS)
    world.end()
    assert len(world.bad) == 400
    assert set(world.bad.values()) == {ERROR}
    # Nobody is any better, so nobody goes.
    assert not world.ever_ejected
    for machine in world.machines:
        machine.broken = False
    world.play(seconds(10))
    world.send(400, BUSY_NS)
    world.end()
    assert len(world.good) == 400


def test_a_backend_alone_is_kept_and_its_error_told_at_once() -> None:
    world = FleetWorld(1, broken=[0])
    world.router.on_messages(world.frontend, [])
    world.submit(1)
    world.advance(1)
    [run] = world.machines[0].link.take(Run)
    world.hear(world.machines[0].link, world.failed(run))
    [dropped] = world.frontend.take(Dropped)
    assert (dropped.rid, dropped.reason, dropped.detail) == (rid(1), "failed", ERROR)
    assert dropped.retry_after_ns == 0
    world.send(100, QUIET_NS)
    assert len(world.bad) == 100
    assert not world.ever_ejected
    world.machines[0].broken = False
    world.send(10, QUIET_NS)
    world.end()
    assert len(world.good) == 10


def test_one_of_two_is_ejected_and_not_the_other() -> None:
    world = FleetWorld(2, broken=[0])
    world.send(150, QUIET_NS)
    assert world.ejected == [0]
    world.machines[1].broken = True
    world.send(100, QUIET_NS)
    assert world.ejected == [0]
    world.machines[1].broken = False
    world.send(10, QUIET_NS)
    world.end()
    assert len(world.good) == 160
    assert len(world.bad) == 100


def test_the_only_backend_that_holds_a_model_is_kept() -> None:
    world = FleetWorld(2)
    world.hear(world.machines[1].link, Ready("emulated", (), empty=True))
    world.machines[0].broken = True
    world.send(100, QUIET_NS)
    world.end()
    assert not world.ever_ejected
    assert set(world.bad.values()) == {ERROR}


# Given back


def test_one_that_is_well_again_is_tried_with_one_batch() -> None:
    world = FleetWorld(8, broken=[0])
    world.send(400, BUSY_NS * 5)
    assert world.ejected == [0]
    world.play(RULES.eject_ns)
    world.machines[0].broken = False
    assert world.ejected == []
    assert world.frontend.take(FleetStatus)[-1].backends == 8
    world.router.engine.leads[0].start_ns = ms(2)
    before = len(world.machines[0].ran)
    for _ in range(12):
        world.send(1, ms(0.4))
    # Others have a second batch behind the first by now.
    assert len(world.machines[0].ran) == before + 1
    assert any(len(each.ran) > 1 for each in world.machines[1:])
    world.send(200, BUSY_NS)
    world.end()
    assert len(world.machines[0].ran) > before + 20
    assert not world.bad


@pytest.mark.parametrize("policy", [*POLICIES, "single-queue", "jellyfish"])
def test_every_policy_takes_it_back(policy: str) -> None:
    world = FleetWorld(4, policy, broken=[0])
    world.send(600, ms(3), slo_ns=ms(300))
    assert world.ejected == [0]
    world.machines[0].broken = False
    world.play(RULES.eject_ns)
    before = len(world.machines[0].ran)
    world.send(600, ms(3), slo_ns=ms(300))
    world.end()
    assert world.ejected == []
    assert len(world.machines[0].ran) > before + 10
    assert len(world.bad) <= 20


def test_each_ejection_is_longer_than_the_one_before() -> None:
    world = FleetWorld(8, broken=[0])
    world.send(400, BUSY_NS * 5)
    for times in (2, 3, 4):
        # One batch shows that it is no better; it is served elsewhere.
        while world.ejected:
            world.play(ms(100))
        before = len(world.machines[0].ran)
        world.send(2, ms(50))
        assert len(world.machines[0].ran) == before + 1
        assert world.ejected == [0]
        world.play(times * RULES.eject_ns - seconds(1))
        assert world.ejected == [0]
    world.play(seconds(2))
    assert not world.bad
    assert world.replaced == [0]


def test_a_trial_that_meets_a_bad_input_is_held_again() -> None:
    world = FleetWorld(8, broken=[0])
    world.send(400, BUSY_NS * 5)
    world.machines[0].broken = False
    world.play(RULES.eject_ns)
    before = len(world.machines[0].ran)
    world.send(1, ms(50), poison_every=1)
    assert world.ejected == []
    world.play(seconds(1))
    world.send(3, ms(50))
    world.end()
    assert len(world.machines[0].ran) == before + 4
    assert world.replaced == []


def test_an_ejected_backend_is_better_than_none() -> None:
    world = FleetWorld(2, broken=[0])
    world.send(150, QUIET_NS)
    assert world.ejected == [0]
    world.machines[0].broken = False
    world.gone(1, CloseCode.LOST)
    world.send(10, QUIET_NS)
    world.end()
    assert len(world.good) == 160


def test_one_that_leaves_on_trial_is_not_had_back() -> None:
    world = FleetWorld(8, broken=[0])
    world.send(400, BUSY_NS * 5)
    world.play(RULES.eject_ns)
    world.submit(9000, slo_ns=ms(100))
    world.advance(1)
    link = world.machines[0].link
    [run] = link.take(Run)
    # It wants to go, then the batch fails that it has.
    world.hear(link, Ready("emulated", ()), world.failed(run))
    assert world.ejected == []
    world.advance(10 * RULES.eject_ns)
    world.submit(9001, slo_ns=ms(100))
    world.advance(ms(1))
    assert link.take(Run) == []


def test_one_that_goes_is_forgotten() -> None:
    world = FleetWorld(8, broken=[0])
    world.send(400, BUSY_NS * 5)
    world.gone(0, CloseCode.SHUTDOWN)
    assert world.ejected == []
    world.play(RULES.eject_ns)
    world.send(100, QUIET_NS)
    world.end()
    assert not world.bad


# Bad inputs


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("slo_ns", [ms(50), ms(12)])
@pytest.mark.parametrize("pattern", ["every tenth", "at random", "in a row"])
def test_bad_inputs_eject_nobody(policy: str, slo_ns: int, pattern: str) -> None:
    world = FleetWorld(8, policy)
    rng = random.Random(1)
    for number in range(1000):
        poisoned = {
            "every tenth": number % 10 == 9,
            "at random": rng.random() < 0.1,
            "in a row": number % 200 >= 180,
        }[pattern]
        world.send(1, BUSY_NS, poison_every=int(poisoned), slo_ns=slo_ns)
    world.end()
    assert not world.ever_ejected
    assert world.poison <= world.bad.keys()


@pytest.mark.parametrize("policy", ["eager", "timeout"])
def test_bad_inputs_do_not_hide_a_broken_backend(policy: str) -> None:
    world = FleetWorld(8, policy, broken=[0])
    world.send(1000, 2 * BUSY_NS, poison_every=10)
    world.end()
    assert world.ever_ejected == {0}
    assert world.innocent <= 20


def test_a_batch_that_fails_is_tried_once_elsewhere_as_it_was() -> None:
    world = FleetWorld(8, "deferred", broken=[0])
    world.send(5, 0, slo_ns=ms(60))
    world.send(1, ms(60), slo_ns=ms(70))
    world.end()
    first, *others = world.machines[0].ran
    assert len(first.rids) >= 5
    [again] = world.machines[1].ran
    assert again.rids == first.rids
    assert not others
    assert not world.bad


@pytest.mark.parametrize("code", [CloseCode.LOST, CloseCode.OVERDUE])
def test_whatever_ran_when_a_backend_was_lost_is_tried_again_alone(code: CloseCode) -> None:
    world = FleetWorld(2)
    world.submit(1, 2, 3, 4, slo_ns=ms(100))
    world.advance(1)
    world.submit(5, 6, slo_ns=ms(100))
    world.advance(1)
    first, second = (each.link for each in world.machines)
    [batch] = first.take(Run)
    assert len(batch.rids) == 4
    world.gone(0, code)
    sizes = []
    for _ in range(5):
        [run] = second.take(Run)
        sizes.append(len(run.rids))
        world.hear(second, Done(run.batch, ms(5), 0))
        world.advance(1)
    assert sizes == [2, 1, 1, 1, 1]
