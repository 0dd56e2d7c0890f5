"""The order in which a router hears of homes, and of what it has to hold."""

import asyncio

from fermata.deployments.control.sub_clusters.directory_teller import DirectoryTeller
from fermata.foundation.errors import NoAnswerError
from fermata.partitioner.plan import Plan
from fermata.router.links.directory import Directory, Home

BEFORE = Directory(1, (Home(0), Home(1)), {"a": ((0, 1.0),), "b": ((0, 1.0),)})
AFTER = Directory(2, (Home(0), Home(1)), {"a": ((1, 1.0),), "b": ((0, 1.0),)})


class FakeLeader:
    """Notes what it is told, in order."""

    def __init__(self) -> None:
        self.term = 1
        self.heard: list[object] = []
        self.deaf = False

    async def address(self) -> str:
        return "here:1"

    async def set_directory(self, directory: Directory) -> None:
        if self.deaf:
            raise NoAnswerError("deaf")
        self.heard.append(directory.version)

    async def place(self, plan: Plan) -> list[str]:
        self.heard.append(tuple(plan.home))
        return []


class Homes:
    """The directory of now, and what the first sub-cluster has to hold."""

    def __init__(self) -> None:
        self.directory = BEFORE
        self.served: tuple[str, ...] = ("a", "b")
        self.router = FakeLeader()
        self.teller = DirectoryTeller(
            self.router,  # type: ignore[arg-type]
            0,
            lambda: self.directory,
            lambda sub_cluster: self.served,
        )

    def tell(self) -> list[object]:
        asyncio.run(self.teller.tell())
        heard, self.router.heard = self.router.heard, []
        return heard


def test_a_router_hears_where_applications_live_before_it_hands_any_back() -> None:
    homes = Homes()
    assert homes.tell() == [1, ("a", "b")]
    assert homes.tell() == []
    # Both have changed since the last look, as where a teller was late.
    homes.directory, homes.served = AFTER, ("b",)
    assert homes.tell() == [2, ("b",)]
    # Another one leads, and knows of nothing.
    homes.router.term = 2
    assert homes.tell() == [2, ("b",)]


def test_a_router_that_does_not_take_the_directory_hands_nothing_back() -> None:
    homes = Homes()
    homes.tell()
    homes.directory, homes.served, homes.router.deaf = AFTER, ("b",), True
    assert homes.tell() == []
    homes.router.deaf = False
    assert homes.tell() == [2, ("b",)]


def test_a_directory_that_changes_while_it_is_told_is_told_before_anything_is_placed() -> None:
    homes = Homes()
    homes.tell()
    version_2 = Directory(2, BEFORE.homes, BEFORE.applications)
    homes.directory = version_2
    told = homes.router.set_directory

    async def slowly(directory: Directory) -> None:
        await told(directory)
        if directory is version_2:
            homes.directory = Directory(3, AFTER.homes, AFTER.applications)
            homes.served = ("b",)

    homes.router.set_directory = slowly  # type: ignore[method-assign]
    assert homes.tell() == [2]
    assert homes.tell() == [3, ("b",)]
