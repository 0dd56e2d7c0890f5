"""Backends with spares: killed one after the other, stopped, scaled; production code throughout."""

from collections import Counter
from itertools import pairwise

import pytest

from fermata.deployments.frontend.outcomes import Refusal
from fermata.fault_simulator.environment.world import InvariantViolationError, World
from fermata.fault_simulator.faults.schedule import FaultSchedule
from fermata.fault_simulator.invariants import Invariants
from fermata.fault_simulator.settling import settle
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import ms, seconds

UP_NS = seconds(4)
KILL_EACH_NS = seconds(6)
"""By then Serve has another replica."""
KILLS = 3
GAP_NS = ms(500)
TRUE = {"no-backend", "backend-lost", "cancelled"}


class Play:
    """One backend with a spare, under load."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.system = SimulatedDeployment(
            self.world, backends=1, frontends=1, standby=False, scaled=False, spared=True
        )
        self.invariants = Invariants(self.system)
        assert self.system.spares is not None
        self.spares = self.system.spares
        self.run(UP_NS)
        self.draws = FaultSchedule(self.system, self.world.rng("kills"))

    def run(self, for_ns: int) -> None:
        self.world.run_until(self.world.now_ns + for_ns)

    def load(self, for_ns: int) -> None:
        self.draws.load(self.world.now_ns, self.world.now_ns + for_ns, 40.0)

    def serves(self) -> int:
        """The number of the one process that may be given batches."""
        (host,) = self.spares.holders()
        return host.process.settings.number

    def ends(self) -> Counter[str]:
        outcomes = [each.outcomes[0] for each in self.system.clients.ledger]
        return Counter(each.reason if isinstance(each, Refusal) else "served" for each in outcomes)


@pytest.mark.parametrize("seed", range(3))
def test_the_only_backend_is_killed_three_times_and_hardly_missed(seed: int) -> None:
    play = Play(seed)
    play.load(KILLS * KILL_EACH_NS)
    numbers = [play.serves()]
    for _ in range(KILLS):
        play.run(seconds(1))
        (host,) = play.spares.holders()
        play.system.harm.excused.add(host.process.settings.number)
        play.system.lose_backend(host)
        play.run(KILL_EACH_NS - seconds(1))
        numbers.append(play.serves())
    settle(play.system)
    play.invariants.check_clean()
    assert len(set(numbers)) == KILLS + 1
    assert play.spares.takeovers == KILLS
    served = [
        each.answered_at_ns
        for each in play.system.clients.ledger
        if not isinstance(each.outcomes[0], Refusal)
    ]
    assert max(after - before for before, after in pairwise(sorted(served))) <= GAP_NS
    assert set(play.ends()) <= {"served", *TRUE}


def test_a_first_that_is_only_stopped_keeps_its_place() -> None:
    """Nobody reaches it, and nobody runs anything in its place: it might go on at any time."""
    play = Play(1)
    (host,) = play.spares.holders()
    play.system.harm.excused.add(host.process.settings.number)
    play.load(seconds(3))
    host.loop.hold(stopped=True)
    play.run(seconds(2))
    assert play.spares.holders() == [host]
    assert play.spares.takeovers == 0
    host.loop.go_on()
    play.run(seconds(1))
    settle(play.system)
    play.invariants.check_clean()
    assert play.ends()["served"] > 10
    assert set(play.ends()) <= {"served", "late", "expired", *TRUE}


def test_a_backend_that_is_not_wanted_any_more_takes_its_spare_along() -> None:
    play = Play(2)
    (before,) = play.spares.holders()
    play.load(seconds(2))
    play.system.start_backend()
    play.run(seconds(1))
    play.system.drain_backend(before)
    play.run(seconds(6))
    settle(play.system)
    play.invariants.check_clean()
    assert not before.loop.alive
    assert play.spares.takeovers == 0
    assert len(play.system.backend_hosts()) == 2
    assert set(play.ends()) <= {"served", "cancelled"}


def test_a_spare_that_does_not_wait_is_found_out() -> None:
    play = Play(3)
    (spare,) = play.spares.hosts()
    play.load(seconds(2))
    play.world.after(ms(200), spare.process.take_over)
    with pytest.raises(InvariantViolationError, match="beside"):
        play.run(seconds(2))
    # What it had begun when the run was stopped never ends.
    spare.loop.die()
