"""Inputs that hang backends: their party is found, runs apart and is refused; l(b) = 4 + b ms."""

import pytest
from fleet_world import FleetWorld, Machine
from router_world import rid

from fermata.foundation.units import ms, seconds
from fermata.router.core.events import DropReason
from fermata.router.health.suspects import Suspects
from fermata.router.links.messages import Dropped, Ready, Submit

HANGS, HONEST, OTHER = 7, 8, 9
RULES = Suspects().rules


class HangingWorld(FleetWorld):
    """Some requests never end, and no more does what waits behind them."""

    def __init__(self, backends: int, policy: str = "eager") -> None:
        super().__init__(backends, policy)
        self.hanging: set[int] = set()
        self.stuck: list[Machine] = []
        self.lost = 0
        """Backends that hung, each of which is replaced at once."""
        self.tenants: dict[int, int] = {}

    def ask(self, tenant: int, hangs: bool = False, slo_ns: int = seconds(1)) -> int:
        self.sent += 1
        one = rid(self.sent)
        self.tenants[one] = tenant
        if hangs:
            self.hanging.add(one)
        self.deadline_ns[one] = self.now_ns + slo_ns
        self.hear(self.frontend, Submit(one, "cats", slo_ns, slo_ns, tenant=tenant))
        return one

    def _start_all(self) -> None:
        super()._start_all()
        hung = [each[2] for each in self.agenda if not self.hanging.isdisjoint(each[3].rids)]
        self.stuck += hung
        self.agenda = sorted(each for each in self.agenda if each[2] not in self.stuck)
        for machine in self.machines:
            if machine.link.closed is not None:
                self.lost += 1
                self.stuck.remove(machine)
                machine.link = self.link("backend", 100 + self.lost)
                machine.free_at_ns = 0
                self.hear(machine.link, Ready("emulated", ("v",)))

    def ends(self, tenant: int) -> dict[str, int]:
        """How a tenant's requests ended."""
        found: dict[str, int] = {}
        for one in self.tenants:
            if self.tenants[one] == tenant and one not in self.deadline_ns:
                why = self.bad.get(one, "good")
                found[why] = found.get(why, 0) + 1
        return found


def play(world: HangingWorld, for_s: int, crowd: int = 4) -> None:
    """One hanging input a second, beside good ones of the same tenant and of two others."""
    for step in range(for_s * 50):
        if step % 50 == 0:
            world.ask(HANGS, hangs=True)
        for _ in range(crowd):
            world.ask(HONEST)
            world.ask(OTHER)
            world.ask(HANGS)
        world.play(ms(20))
    world.play(seconds(2))


@pytest.mark.parametrize("policy", ["eager", "deferred", "central-queue", "routing"])
def test_one_backend_at_most_is_lost_to_each_hanging_input(policy: str) -> None:
    world = HangingWorld(4, policy)
    play(world, 10)
    assert world.lost == RULES.hangs
    ends = world.ends(HANGS)
    assert ends["blamed"] > 7
    others = [world.ends(tenant) for tenant in (HONEST, OTHER)]
    for each in others:
        bad = sum(count for why, count in each.items() if why != "good")
        # Those that shared the very first batch that hung.
        assert bad <= 16, each
    assert not world.deadline_ns


def test_the_company_of_a_suspect_is_cleared_and_shares_batches_again() -> None:
    world = HangingWorld(2)
    world.ask(HANGS, hangs=True)
    play(world, 1)
    world.play(RULES.apart_ns)
    suspects = world.router.fleet.separation.suspects
    assert not suspects.is_apart(world.now_ns, 0, HONEST)


def test_a_tenant_that_was_refused_is_tried_again_later_and_refused_for_longer() -> None:
    suspects = Suspects()
    now_ns = seconds(1)
    refused: list[int] = []
    for _ in range(RULES.hangs):
        refused += suspects.on_hang(now_ns, 0, {HANGS})[1]
    assert refused == [HANGS]
    assert suspects.refused_ns(now_ns, 0, HANGS) == RULES.refuse_ns
    assert suspects.refused_ns(now_ns, 1, HANGS) == 0
    now_ns += RULES.refuse_ns
    assert suspects.refused_ns(now_ns, 0, HANGS) == 0
    assert suspects.is_apart(now_ns, 0, HANGS)
    assert suspects.on_hang(now_ns, 0, {HANGS})[1] == [HANGS]
    assert suspects.refused_ns(now_ns, 0, HANGS) == 2 * RULES.refuse_ns


def test_company_alone_is_never_refused() -> None:
    suspects = Suspects()
    for _ in range(10):
        assert suspects.on_hang(0, 0, {HANGS, HONEST})[1] == []
    assert suspects.on_hang(0, 0, {HANGS}) == (True, [HANGS])
    assert suspects.refused_ns(0, 0, HONEST) == 0


def test_a_refusal_says_for_how_long_and_takes_those_along_who_wait() -> None:
    world = HangingWorld(1)
    for _ in range(RULES.hangs):
        world.ask(HANGS, hangs=True)
        world.ask(HANGS, slo_ns=seconds(60))
        world.play(ms(500))
    one = world.ask(HANGS)
    [dropped] = [each for each in world.frontend.said if isinstance(each, Dropped)]
    assert (dropped.rid, dropped.reason) == (one, DropReason.BLAMED)
    assert ms(100) < dropped.retry_after_ns <= RULES.refuse_ns


def test_a_model_that_hangs_whoever_asks_is_quarantined() -> None:
    world = HangingWorld(4)
    for _ in range(4):
        world.ask(0, hangs=True)
        world.play(ms(500))
    assert world.router.fleet.availability.quarantined == {"cats"}
    assert world.lost == 3


def test_suspects_do_not_share_a_batch_with_others() -> None:
    world = HangingWorld(1, "deferred")
    world.ask(HANGS, hangs=True, slo_ns=ms(100))
    world.ask(HONEST, slo_ns=ms(100))
    world.play(seconds(1))
    for _ in range(4):
        world.ask(HANGS, slo_ns=ms(100))
        world.ask(HONEST, slo_ns=ms(100))
        world.ask(OTHER, slo_ns=ms(100))
    world.play(ms(200))
    [machine] = world.machines
    later = [run.rids for run in machine.ran if max(run.rids) > rid(2)]
    assert {len({world.tenants[each] for each in rids}) for rids in later} == {1}
    # Those who have nothing to do with it go on as before, and suspects meet with their own.
    assert all(world.ends(tenant)["good"] == 4 for tenant in (HONEST, OTHER, HANGS))
    assert len(later) == 4


class RaisingWorld(HangingWorld):
    """Some requests raise an error, and spoil the half of the batch that they are in."""

    def raise_in(self, tenant: int) -> int:
        one = rid(self.sent + 1)
        self.poison.add(one)
        return self.ask(tenant, slo_ns=ms(100))


@pytest.mark.parametrize("policy", ["eager", "deferred", "central-queue"])
@pytest.mark.parametrize("raising", [HANGS, 0])
def test_inputs_that_raise_cost_nobody_else(policy: str, raising: int) -> None:
    """A fifth of all batches has an input that the model cannot take."""
    world = RaisingWorld(4, policy)
    for step in range(3000):
        if step % 40 == 0:
            world.raise_in(raising)
        else:
            world.ask((raising, HONEST, OTHER)[step % 3], slo_ns=ms(100))
        world.play(ms(0.8))
    world.play(seconds(1))
    assert not world.ever_ejected
    for tenant in (HONEST, OTHER):
        ends = world.ends(tenant)
        bad = sum(count for why, count in ends.items() if why != "good")
        assert bad <= 0.005 * sum(ends.values()), ends
    # A request that raises gets its own error, and the rest of its requests are served.
    ends = world.ends(raising)
    assert ends["ValueError: poison"] >= 75
    assert ends["good"] >= 900


def test_one_error_now_and_then_keeps_nobody_apart() -> None:
    suspects = Suspects()
    for second in range(100):
        suspects.on_error(seconds(6 * second), 0, {HANGS})
        assert not suspects.is_apart(seconds(6 * second), 0, HANGS)
