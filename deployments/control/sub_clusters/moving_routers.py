"""Several routers as one, for the loop that decides at epochs where applications live."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fermata.autoscaler.control_loop import ControlLoop
from fermata.autoscaler.options import EpochOptions
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.sub_clusters import epochs_between
from fermata.deployments.control.leader_client import LeaderClient
from fermata.deployments.control.sub_clusters.homes import starting_problem
from fermata.deployments.control.sub_clusters.merging import grouped, merged_snapshot
from fermata.deployments.control.sub_clusters.moves import HomeMoves
from fermata.foundation.errors import NoAnswerError
from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import SECOND
from fermata.partitioner.plan import Plan
from fermata.profiles.profile import Profile
from fermata.router.telemetry.snapshot import PlacementSnapshot, RouterSnapshot


def loop_ns() -> int:
    """Time of the running loop."""
    return round(asyncio.get_running_loop().time() * SECOND)


def moving_loop(config: DeploymentConfig, profiles: Mapping[str, Profile]) -> ControlLoop | None:
    """The decisions at epochs between routers; None where applications stay."""
    given = epochs_between(config)
    if given is None:
        return None
    problem = starting_problem(config, profiles)
    options: EpochOptions = replace(
        given.options(),
        sub_clusters=config.sub_clusters.count,
        memory_bytes=problem.sub_clusters[0].memory_bytes,
    )
    return ControlLoop(None, options, problem.models)


class MovingRouters:
    """Reads all routers at once, and has applications move between them (`Steered`)."""

    def __init__(
        self, moves: HomeMoves, routers: Sequence[LeaderClient], wall_ms: Callable[[], int]
    ) -> None:
        self.moves = moves
        self.wall_ms = wall_ms
        self.routers = routers

    @property
    def term(self) -> int:
        """Another number once any of them has another leader; 0 while one has none."""
        terms = [each.term for each in self.routers]
        return sum(terms) if all(terms) else 0

    async def snapshot(self) -> RouterSnapshot:
        """Counts of each application, its home, and whether it is on its way to another."""
        told = await asyncio.gather(*(each.snapshot() for each in self.routers))
        now_ns, moves = loop_ns(), self.moves
        before = moves.keeper.directory
        moves.on_loaded(now_ns, self.wall_ms(), _loaded(told))
        moves.on_time(now_ns)
        if moves.keeper.directory is not before:
            about = fields(version=moves.keeper.directory.version, homes=dict(moves.wanted))
            LOG.info("applications have moved", extra=about)
        merged = grouped(merged_snapshot(dict(enumerate(told))), moves.members)
        placement = PlacementSnapshot(moves.plan().home, {}, moves.on_their_way())
        return replace(merged, up_ns=now_ns, placement=placement)

    async def place(self, plan: Plan) -> list[str]:
        """Have applications live by this plan; returns those that do not yet."""
        self.moves.order(plan)
        return self.moves.on_their_way()

    async def set_target(self, wanted: list[int]) -> None:
        """Backends of a sub-cluster are counted by its own router."""
        raise NoAnswerError("each sub-cluster has a number of backends of its own")


def _loaded(told: Sequence[RouterSnapshot]) -> dict[int, set[str]]:
    return {
        number: set(each.placement.applications) - set(each.placement.on_their_way)
        for number, each in enumerate(told)
    }
