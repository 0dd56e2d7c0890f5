"""Several routers as one, for the loop that decides at epochs where applications live."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from fermata.autoscaler.control_loop import ControlLoop
from fermata.autoscaler.options import EpochOptions
from fermata.autoscaler.router_count import RouterCount
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.sub_clusters import epochs_between, most_open
from fermata.deployments.control.leader_client import LeaderClient
from fermata.deployments.control.sub_clusters.all_routers import AllRouters, BackendsOf
from fermata.deployments.control.sub_clusters.homes import (
    known_homes,
    opened_at_start,
    opened_before,
    room_of,
    settled_bytes,
    starting_problem,
)
from fermata.deployments.control.sub_clusters.merging import grouped, merged_snapshot
from fermata.deployments.control.sub_clusters.moves import HomeMoves
from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import SECOND
from fermata.partitioner.plan import Plan
from fermata.profiles.profile import Profile
from fermata.router.links.directory import Directory
from fermata.router.telemetry.snapshot import PlacementSnapshot, RouterSnapshot


def loop_ns() -> int:
    """Time of the running loop."""
    return round(asyncio.get_running_loop().time() * SECOND)


def counting_of(
    config: DeploymentConfig,
    profiles: Mapping[str, Profile],
    before: Directory | None,
    start_rps: float | None = None,
) -> RouterCount | None:
    """The number of sub-clusters that serve, where it is not given. It goes on from `before`."""
    if config.sub_clusters.count != "auto":
        return None
    known, scaled = known_homes(config, before), config.autoscaler
    if before is None or known is None:
        opened = opened_at_start(config, profiles, start_rps)
    else:
        opened = opened_before(known, before)
    backends_max = None if scaled is None or scaled.dry_run else scaled.maximum
    return RouterCount(opened, config.sub_clusters.routers, most_open(config), backends_max)


def moving_loop(
    config: DeploymentConfig,
    profiles: Mapping[str, Profile],
    counting: RouterCount | None = None,
    start_rps: float | None = None,
    by_group: Sequence[Mapping[str, Profile]] = (),
    rooms: Sequence[int] = (),
) -> ControlLoop | None:
    """The decisions at epochs between routers; None where applications stay. R_max is learnt from
    `start_rps` on, where that is known, and `rooms` on devices are those of the start."""
    given = epochs_between(config)
    if given is None:
        return None
    problem = starting_problem(config, profiles, by_group=by_group)
    places = problem.sub_clusters
    options: EpochOptions = replace(
        given.options(),
        sub_clusters=len(places),
        memory_bytes_by=tuple(room_of(config, each, rooms) for each in range(len(places))),
        settled_bytes=settled_bytes(config, profiles, by_group),
        kinds=tuple(each.kind for each in places) if by_group else (),
        shares=tuple(each.share for each in places) if by_group else (),
    )
    found = ControlLoop(None, options, problem.models, counting=counting)
    if found.placer is not None:
        found.placer.capacity.start_rps = start_rps
    return found


class MovingRouters:
    """Reads all routers at once, and has applications move between them (`Steered`)."""

    def __init__(
        self,
        moves: HomeMoves,
        routers: Sequence[LeaderClient],
        backends_of: BackendsOf,
        wall_ms: Callable[[], int],
    ) -> None:
        self.moves = moves
        self.wall_ms = wall_ms
        self.routers = AllRouters(routers, backends_of)

    @property
    def term(self) -> int:
        return self.routers.term

    async def snapshot(self) -> RouterSnapshot:
        """Counts of each application, its home, and whether it is on its way to another."""
        told = await self.routers.snapshots()
        now_ns, moves = loop_ns(), self.moves
        before = moves.keeper.directory
        silent = self.routers.silent
        moves.on_loaded(now_ns, self.wall_ms(), loaded_at(told, silent))
        moves.on_time(now_ns)
        if moves.keeper.directory is not before:
            about = fields(version=moves.keeper.directory.version, homes=dict(moves.wanted))
            LOG.info("applications have moved", extra=about)
        merged = grouped(merged_snapshot(dict(enumerate(told))), moves.members)
        # Where nothing can load, no move would ever end.
        bare = {at for at, each in enumerate(told) if not sum(one.backends for one in each.ranks)}
        placement = PlacementSnapshot(
            moves.plan().home,
            {},
            moves.on_their_way(),
            tuple(sorted(silent)),
            tuple(sorted(bare - silent)),
        )
        ranks = [
            replace(rank, settled_requests=_settled(each, moves.members))
            for rank, each in zip(merged.ranks, told, strict=True)
        ]
        wanted = targets_of(told)
        return replace(merged, up_ns=now_ns, placement=placement, ranks=ranks, wanted=wanted)

    async def place(self, plan: Plan) -> list[str]:
        """Have applications live by this plan; returns those that do not yet."""
        self.moves.order(plan)
        return self.moves.on_their_way()

    async def set_target(self, wanted: list[int]) -> None:
        """Have sub-clusters that open or close get their backends, or lose them."""
        for number, router in enumerate(self.routers.routers):
            if number not in self.routers.silent and self.routers.last[number].wanted != [
                wanted[number]
            ]:
                await router.set_target([wanted[number]])


def targets_of(told: Sequence[RouterSnapshot]) -> list[int]:
    """Backends that each sub-cluster should have; none where a router has not been told."""
    targets = [count for each in told for count in each.wanted]
    return targets if len(targets) == len(told) else []


def _settled(told: RouterSnapshot, members: Mapping[str, Sequence[str]]) -> int:
    movable = {name for names in members.values() for name in names}
    return sum(each.requests for name, each in told.applications.items() if name not in movable)


def loaded_at(told: Sequence[RouterSnapshot], silent: Collection[int]) -> dict[int, set[str]]:
    return {
        number: set(each.placement.applications) - set(each.placement.on_their_way)
        for number, each in enumerate(told)
        if number not in silent
    }
