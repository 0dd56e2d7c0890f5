"""The snapshots of all routers, as far as they answer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from fermata.deployments.control.leader_client import LeaderClient
from fermata.foundation.errors import NoAnswerError
from fermata.router.telemetry.snapshot import (
    PlacementSnapshot,
    RouterSnapshot,
    SubClusterSnapshot,
)

AWAIT_S = 15.0
"""For a router that has never answered; the cluster starts a dead one again well within it."""
BackendsOf = Callable[[int], Awaitable[int]]
"""Backends of a sub-cluster that run or are on their way."""


class AllRouters:
    """Reads the routers of all sub-clusters at once. One that does not answer must not keep the
    others from being decided for: it is told of as it last was.

    One that has never answered does keep them for a while, after a restart of the control plane,
    since targets and counts are taken from it. Then it is told of as one without counts, which
    wants the backends that it has, so that none in use are ended."""

    def __init__(
        self, routers: Sequence[LeaderClient], backends_of: BackendsOf, await_s: float = AWAIT_S
    ) -> None:
        self.routers = routers
        self.backends_of = backends_of
        self.last: dict[int, RouterSnapshot] = {}
        self.silent: frozenset[int] = frozenset()
        """Sub-clusters whose routers have not answered the last time."""
        self.unknown: set[int] = set()
        """Those that have never answered, and are not waited for any more."""
        self.until_s = asyncio.get_running_loop().time() + await_s

    @property
    def term(self) -> int:
        """Another number once any of them has another leader; 0 while one that has answered has
        none."""
        known = enumerate(self.routers)
        terms = [each.term for number, each in known if each.term or number not in self.unknown]
        return sum(terms) if all(terms) else 0

    async def snapshots(self) -> list[RouterSnapshot]:
        """By sub-cluster. Raises NoAnswerError where none answers, or one has not yet."""
        found = await asyncio.gather(
            *(each.snapshot() for each in self.routers), return_exceptions=True
        )
        answers: dict[int, RouterSnapshot] = {}
        for number, told in enumerate(found):
            if isinstance(told, RouterSnapshot):
                answers[number] = told
            elif not isinstance(told, NoAnswerError):
                raise told
        self.last |= answers
        self.unknown -= answers.keys()
        self.silent = frozenset(range(len(found))) - answers.keys()
        is_late = asyncio.get_running_loop().time() >= self.until_s
        if not answers or (len(self.last) < len(found) and not is_late):
            raise NoAnswerError(f"routers of sub-clusters {sorted(self.silent)} do not answer")
        for number in self.silent - self.last.keys():
            backends = await self.backends_of(number)
            self.last[number] = _without_counts(next(iter(answers.values())), backends)
            self.unknown.add(number)
        return [self.last[number] for number in range(len(found))]


def _without_counts(other: RouterSnapshot, backends: int) -> RouterSnapshot:
    """A router of which nothing is known but its backends, in the form of another one's snapshot.
    Its term is another one than any that it will tell, so that its counts begin then."""
    return replace(
        other,
        term=0,
        applications={},
        busy_ns={},
        backends={},
        wanted=[backends],
        ranks=[SubClusterSnapshot(0, 0, 0, 0.0, 0.0, 0.0, 0, 0)],
        placement=PlacementSnapshot({}, {}, []),
    )
