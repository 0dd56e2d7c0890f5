"""The faults of a run, their times and spans: drawn from the seed."""

import random
from functools import partial

from fermata.fault_simulator.deployment import draw_policy
from fermata.fault_simulator.faults.draws import Draws
from fermata.fault_simulator.faults.kinds import FAULTS, Heal
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import ms

POLICIES_CHANGE = 0.3
"""Share of the runs in which policies change."""


class FaultSchedule(Draws):
    """Draws faults beside the load, and undoes what does not end by itself."""

    def __init__(
        self, system: SimulatedDeployment, rng: random.Random, kinds: tuple[str, ...] = ()
    ) -> None:
        super().__init__(system, rng)
        self.kinds = kinds or tuple(FAULTS)
        self.heals: list[Heal] = []

    def faults(self, from_ns: int, to_ns: int, count: int) -> None:
        for _ in range(count):
            kind = self.rng.choice(self.kinds)
            at_ns = self.rng.randrange(from_ns, to_ns)
            self.world.enter(at_ns, partial(self._play, kind))

    def policies(self, from_ns: int, to_ns: int) -> None:
        """Other policies now and then, from a draw of their own: other draws stay as they are."""
        rng = self.world.rng("policies")
        if rng.random() < POLICIES_CHANGE:
            for _ in range(rng.randint(1, 3)):
                policy, options = draw_policy(rng, self.system.room > 0)
                router: JsonObject = {"policy": policy, "policy_options": options}
                wanted = {"router": router}
                at_ns = rng.randrange(from_ns, to_ns)
                self.world.enter(at_ns, partial(self.system.redeploy_policies, wanted))

    def _play(self, kind: str) -> None:
        self.world.say("fault:", kind)
        heal = FAULTS[kind](self)
        if heal is not None:
            self.heals.append(heal)
            self.world.after(self._span_ns(), lambda: self._undo(heal))

    def _span_ns(self) -> int:
        """Short ones mostly: what lasts is noticed, what nearly lasts is harder."""
        return int(ms(20) * 100 ** self.rng.random())

    def _undo(self, heal: Heal) -> None:
        if heal in self.heals:
            self.heals.remove(heal)
            heal()

    def heal(self) -> None:
        """End everything that still goes on."""
        for heal in tuple(self.heals):
            self._undo(heal)
