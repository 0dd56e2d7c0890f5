"""Named processes that the cluster starts again when they die, and calls to them: what Ray does."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fermata.fault_simulator.environment.world import VirtualLoop, World, settle
from fermata.fault_simulator.processes import RouterHost
from fermata.foundation.errors import GoneError, NoAnswerError
from fermata.foundation.units import ms, seconds
from fermata.router.assembly import RouterConfig

CALL_NS = ms(2)
"""A call takes so long each way, at most, while the cluster is well."""
END_NS = seconds(1)
"""A process that is ended lives on for so long, at most."""


class RpcConditions:
    """How well the cluster itself is: faults change it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.slow_ns = 0
        self.lost = 0.0
        """Share of calls that come to nothing, half of them after they have been carried out."""

    def way_ns(self) -> int:
        return self.rng.randrange(CALL_NS) + (self.rng.randrange(self.slow_ns + 1))

    @property
    def calm(self) -> bool:
        return not self.slow_ns and not self.lost

    def loses(self) -> bool:
        return self.lost > 0.0 and self.rng.random() < self.lost / 2

    async def answers(self) -> None:
        """Wait until the cluster answers, if it does."""
        await asyncio.sleep(self.way_ns() * 2 / 1e9)
        if self.loses():
            raise NoAnswerError("the cluster does not answer")


class KeptTerms:
    """The cluster's record of routers' terms (`TermRecord`)."""

    def __init__(self, weather: RpcConditions) -> None:
        self.weather = weather
        self.last = 0

    async def highest(self) -> int:
        await self.weather.answers()
        return self.last

    async def note(self, term: int) -> None:
        await self.weather.answers()
        self.last = max(self.last, term)


@dataclass(eq=False, slots=True)
class Call:
    """One question to an actor."""

    caller: VirtualLoop
    name: str
    given: tuple[Any, ...]
    answer: "asyncio.Future[Any]"


class SimulatedActor:
    """The actor behind a name. Calls wait while its process is away, and are made once more where
    it died under them."""

    def __init__(
        self,
        world: World,
        weather: RpcConditions,
        seat: int,
        plan: RouterConfig,
        mark: str,
    ) -> None:
        self.world = world
        self.weather = weather
        self.seat = seat
        self.plan = plan
        self.mark = mark
        self.host: RouterHost | None = None
        self.ended = False
        self.calls: dict[Call, None] = {}
        """Not answered yet."""
        self.on_call: list[Callable[[Call], None]] = []
        self.told: set[VirtualLoop] = set()
        """Callers that know the name's actor."""

    def up(self, host: RouterHost) -> None:
        self.host = host
        for call in tuple(self.calls):
            self._hand_over(call)

    async def call(self, caller: VirtualLoop, name: str, *given: Any) -> Any:
        call = Call(caller, name, given, caller.create_future())
        for look in self.on_call:
            look(call)
        self.world.after(self.weather.way_ns(), lambda: self._take(call))
        return await call.answer

    def _take(self, call: Call) -> None:
        if self.ended:
            self._reply(call, None, GoneError("it was ended"))
        elif self.weather.loses():
            self._reply(call, None, NoAnswerError("the question was lost"))
        else:
            self.calls[call] = None
            if self.host is not None and self.host.loop.alive:
                self._hand_over(call)

    def _hand_over(self, call: Call) -> None:
        assert self.host is not None
        self.host.loop.start(partial(self._carry_out, self.host, call))

    async def _carry_out(self, host: RouterHost, call: Call) -> None:
        value, failed = None, None
        try:
            value = await getattr(host.process, call.name)(*call.given)
        except NoAnswerError as error:
            failed = NoAnswerError(str(error))
        if call in self.calls:
            del self.calls[call]
            if self.weather.loses():
                value, failed = None, NoAnswerError("the answer was lost")
            elif call.name == "mark":
                self.told.add(call.caller)
            self._reply(call, value, failed)

    def _reply(self, call: Call, value: object, failed: Exception | None) -> None:
        at_ns = self.world.now_ns + self.weather.way_ns()
        self.world.enter(at_ns, lambda: settle(call.answer, value, failed), call.caller)

    def end(self) -> None:
        """For good; its process hears of it a little later."""
        self.ended = True
        if self.host is not None:
            self.world.after(self.weather.rng.randrange(END_NS), self.host.loop.die)
        calls, self.calls = self.calls, {}
        for call in calls:
            self._reply(call, None, GoneError("it was ended"))


class Handle:
    """An actor's methods, as one process calls them."""

    def __init__(self, actor: SimulatedActor, caller: VirtualLoop) -> None:
        self.actor = actor
        self.caller = caller

    def __getattr__(self, name: str) -> Any:
        async def call(*given: Any) -> Any:
            return await self.actor.call(self.caller, name, *given)

        return call


def end_actor(named: list[SimulatedActor | None], actor: SimulatedActor) -> None:
    """End an actor; its name is free from now on."""
    if named[actor.seat] is actor:
        named[actor.seat] = None
    actor.end()
