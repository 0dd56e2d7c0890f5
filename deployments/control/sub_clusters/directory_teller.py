"""Tells the router that leads a sub-cluster which applications live where, and which it has to
hold, whenever either changes."""

import asyncio
from collections.abc import Callable

from fermata.deployments.control.leader_client import LeaderClient
from fermata.foundation.errors import NoAnswerError
from fermata.foundation.logs import LOG, fields
from fermata.partitioner.plan import Plan
from fermata.router.links.directory import Directory, Home

LOOK_S = 0.25
"""Between two looks at whether another router leads, or the directory is a newer one."""


class DirectoryTeller:
    """Keeps the leader of one sub-cluster to the directory of now, and to its applications."""

    def __init__(
        self,
        router: LeaderClient,
        sub_cluster: int,
        directory: Callable[[], Directory],
        served: Callable[[int], tuple[str, ...]] | None = None,
    ) -> None:
        """`served` tells what a sub-cluster has to hold; None where applications stay."""
        self.router = router
        self.directory = directory
        self.served = served
        self.home = Home(sub_cluster)
        """The leader as it was last seen."""
        self.told = (0, 0)
        """Term of the router that was last told, and the version."""
        self.placed: tuple[int, tuple[str, ...]] = (0, ())
        """The same with the applications that it has to hold."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(LOOK_S)

    async def tell(self) -> None:
        """Tell the leader, unless it knows.

        The directory comes first: frontends hear on the same links of an application's new home
        before anything is handed back, and a router that has just come to lead knows that what it
        does not hold lives elsewhere. Homes are told once they have loaded (`HomeMoves`).
        """
        term, directory = self.router.term, self.directory()
        try:
            if term and term != self.home.term:
                self.home = Home(self.home.sub_cluster, await self.router.address(), term)
            if term and self.told != (term, directory.version):
                await self.router.set_directory(directory)
                self.told = (term, directory.version)
            if term and self.served is not None:
                await self._place(term, directory)
        except NoAnswerError as error:
            LOG.info("router did not take the directory", extra=fields(reason=error))

    async def _place(self, term: int, told: Directory) -> None:
        assert self.served is not None
        names = self.served(self.home.sub_cluster)
        # What a newer directory has made of it waits for that one to be told.
        if self.directory() is told and self.placed != (term, names):
            await self.router.place(Plan(dict.fromkeys(names, 0)))
            self.placed = term, names
