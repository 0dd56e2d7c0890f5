"""Several routers as one, for the loop that decides how many backends each sub-cluster has."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fermata.autoscaler.control_loop import ControlLoop
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.control.leader_client import LeaderClient
from fermata.deployments.control.scaling import placed_models
from fermata.deployments.control.sub_clusters.merging import merged_snapshot
from fermata.deployments.control.sub_clusters.moving_routers import loop_ns
from fermata.foundation.errors import NoAnswerError
from fermata.partitioner.plan import PlacedModel, Plan
from fermata.profiles.profile import Profile
from fermata.router.telemetry.snapshot import (
    PlacementSnapshot,
    RouterSnapshot,
    SubClusterSnapshot,
)


def part_at(sub_cluster: int, application: str) -> str:
    """The part of an application that one sub-cluster serves: each counts its own requests."""
    return f"{sub_cluster}/{application}"


def scaled_parts(
    config: DeploymentConfig, profiles: Mapping[str, Profile]
) -> tuple[PlacedModel, ...]:
    """Parts of all applications, wherever they may live."""
    return tuple(
        replace(each, name=part_at(number, each.name))
        for number in range(config.sub_clusters.count)
        for each in placed_models(config, profiles)
    )


def scaling_control(
    config: DeploymentConfig, profiles: Mapping[str, Profile]
) -> ControlLoop | None:
    """The decisions on backends of all sub-clusters; None where their number is fixed."""
    if config.autoscaler is None:
        return None
    models, count = scaled_parts(config, profiles), config.sub_clusters.count
    return ControlLoop(config.autoscaler.options(), None, models, count)


class ScaledRouters:
    """Reads all routers at once, and tells each how many backends it should have (`Steered`)."""

    def __init__(self, routers: Sequence[LeaderClient]) -> None:
        self.routers = routers

    @property
    def term(self) -> int:
        """Another number once any of them has another leader; 0 while one has none."""
        terms = [each.term for each in self.routers]
        return sum(terms) if all(terms) else 0

    async def snapshot(self) -> RouterSnapshot:
        """Counts of each part of an application, and the backends of each sub-cluster."""
        told = await asyncio.gather(*(each.snapshot() for each in self.routers))
        return replace(in_parts(told), up_ns=loop_ns())

    async def set_target(self, wanted: list[int]) -> None:
        pairs = zip(self.routers, wanted, strict=True)
        await asyncio.gather(*(router.set_target([count]) for router, count in pairs))

    async def place(self, plan: Plan) -> list[str]:
        """Applications are placed by another loop."""
        raise NoAnswerError("backends are counted here, and nothing is placed")


def in_parts(told: Sequence[RouterSnapshot]) -> RouterSnapshot:
    """All routers as one with a sub-cluster for each."""
    numbered = list(enumerate(told))
    targets = [count for each in told for count in each.wanted]
    return replace(
        merged_snapshot(dict(numbered)),
        applications={
            part_at(number, name): counts
            for number, each in numbered
            for name, counts in each.applications.items()
        },
        busy_ns={
            part_at(number, name): busy_ns
            for number, each in numbered
            for name, busy_ns in each.busy_ns.items()
        },
        ranks=[_named(number, rank) for number, each in numbered for rank in each.ranks],
        # One that has come to lead since has none: all are told again.
        wanted=targets if len(targets) == len(told) else [],
        placement=PlacementSnapshot(
            {
                part_at(number, name): number
                for number, each in numbered
                for name in each.placement.applications
            },
            {},
            [],
        ),
    )


def _named(number: int, rank: SubClusterSnapshot) -> SubClusterSnapshot:
    pools = [
        replace(
            pool,
            applications=[part_at(number, name) for name in pool.applications],
            untold=[part_at(number, name) for name in pool.untold],
        )
        for pool in rank.pools
    ]
    return replace(rank, pools=pools)
