"""The router that leads, in whichever seat: what the control plane asks and tells."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from fermata.deployments.control.cluster import Router
from fermata.foundation.errors import GoneError, NoAnswerError
from fermata.partitioner.plan import Plan
from fermata.router.links.directory import Directory
from fermata.router.live.policy_change import PolicySet
from fermata.router.policies.jellyfish.mapping_problem import Assignment, MappingProblem
from fermata.router.telemetry.snapshot import RouterSnapshot

ANSWER_S = 1.0
"""A router that takes longer does not answer."""
LOOK_S = 0.5
"""Between two questions to a router whether it leads."""
LOST_S = 30.0
"""Until that is asked again where no answer comes: one that is away finds all of them when it is
back."""

MORE_S = 9.0
"""For a router to build sources of other policies."""

T = TypeVar("T")


async def within(wait_s: float, answer: Awaitable[T]) -> T:
    """The answer, if it comes in time."""
    try:
        return await asyncio.wait_for(answer, wait_s)
    except TimeoutError:
        raise NoAnswerError(f"no answer within {wait_s:g} s") from None


class LeaderClient:
    """Passes on what it is asked to the router that leads (`Leader`), and raises NoAnswerError
    where there is none. Two that say so at once: the higher term does, see
    `fermata.router.leadership.role`."""

    def __init__(self) -> None:
        self.routers: list[Router] = []
        self.claims: list[int] = []
        """By seat: the term in which it leads; 0: it waits, or has not said yet."""
        self.asked_at_s: list[float | None] = []
        """Since when there is a question to each that it has not answered."""
        self.loop = asyncio.get_running_loop()
        self.found: asyncio.Future[None] = self.loop.create_future()
        """Done once somebody leads; or fails, as the first router did that never will."""

    @property
    def term(self) -> int:
        """Term of the leader; another router knows nothing that this one was told."""
        return max(self.claims, default=0)

    async def keep(self, router: Router) -> None:
        """Ask the router of the next seat whether it leads, again and again, until it is gone for
        good. One that only died, the cluster starts again."""
        try:
            await self._look(router)
        except Exception as error:
            if not self.found.done():
                self.found.set_exception(error)
            raise

    async def _look(self, router: Router) -> None:
        seat = len(self.routers)
        self.routers.append(router)
        self.claims.append(0)
        self.asked_at_s.append(None)
        while True:
            self.asked_at_s[seat] = self.loop.time()
            try:
                self.claims[seat] = await within(LOST_S, router.leading())
                self.asked_at_s[seat] = None
            except GoneError:
                raise
            except NoAnswerError:
                pass
            if self.term and not self.found.done():
                self.found.set_result(None)
            await asyncio.sleep(LOOK_S)

    def _leader(self) -> Router:
        if not self.term:
            raise NoAnswerError("no router leads")
        seat = self.claims.index(self.term)
        asked_at_s = self.asked_at_s[seat]
        if asked_at_s is not None and self.loop.time() - asked_at_s > ANSWER_S:
            raise NoAnswerError("the router that led does not answer")
        return self.routers[seat]

    async def _ask(self, method: str, *given: Any, more_s: float = 0.0) -> Any:
        while True:
            leader = self._leader()
            try:
                return await within(ANSWER_S + more_s, getattr(leader, method)(*given))
            except NoAnswerError:
                # Another one may have been found to lead meanwhile.
                if self._leader() is leader:
                    raise

    async def snapshot(self) -> RouterSnapshot:
        snapshot: RouterSnapshot = await self._ask("snapshot")
        return snapshot

    async def observe(self) -> RouterSnapshot:
        snapshot: RouterSnapshot = await self._ask("observe")
        return snapshot

    async def questions(self, wait_s: float) -> dict[int, MappingProblem]:
        return dict(await self._ask("questions", wait_s, more_s=wait_s))

    async def take_plans(self, plans: dict[int, Assignment]) -> None:
        await self._ask("take_plans", plans)

    async def place(self, plan: Plan) -> list[str]:
        return list(await self._ask("place", plan))

    async def withdraw(self, application: str, reason: str) -> None:
        await self._ask("withdraw", application, reason)

    async def set_target(self, wanted: list[int]) -> None:
        await self._ask("set_target", wanted)

    async def set_policies(self, wanted: PolicySet) -> list[str]:
        # The router may have tables and checkpoints to read.
        return list(await self._ask("set_policies", wanted, more_s=MORE_S))

    async def set_directory(self, directory: Directory) -> None:
        await self._ask("set_directory", directory)

    async def directory(self) -> Directory | None:
        directory: Directory | None = await self._ask("directory")
        return directory

    async def address(self) -> str:
        """The address of the leader's links."""
        return str(await self._ask("address"))
