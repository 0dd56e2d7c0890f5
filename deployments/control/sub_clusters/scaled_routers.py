"""Several routers as one, for the loop that decides how many backends each sub-cluster has."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from fermata.autoscaler.control_loop import ControlLoop
from fermata.autoscaler.router_count import RouterCount
from fermata.deployments.config.backend_groups import own_config
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.control.leader_client import LeaderClient
from fermata.deployments.control.scaling import placed_models
from fermata.deployments.control.sub_clusters.all_routers import AllRouters, BackendsOf
from fermata.deployments.control.sub_clusters.kinds import Profiles, kind_limits
from fermata.deployments.control.sub_clusters.merging import merged_snapshot
from fermata.deployments.control.sub_clusters.moving_routers import loop_ns, targets_of
from fermata.foundation.errors import NoAnswerError
from fermata.partitioner.plan import PlacedModel, Plan
from fermata.router.telemetry.snapshot import (
    PipelineSnapshot,
    PlacementSnapshot,
    RouterSnapshot,
    SubClusterSnapshot,
)


def part_at(sub_cluster: int, application: str) -> str:
    """The part of an application that one sub-cluster serves: each counts its own requests."""
    return f"{sub_cluster}/{application}"


def scaled_parts(
    config: DeploymentConfig, profiles: Profiles, by_group: Sequence[Profiles] = ()
) -> tuple[PlacedModel, ...]:
    """Parts of all applications, wherever they may live, with the run times there."""
    return tuple(
        replace(each, name=part_at(number, each.name))
        for number in range(config.sub_clusters.routers)
        for each in placed_models(
            own_config(config, number), by_group[number] if by_group else profiles
        )
    )


def scaling_control(
    config: DeploymentConfig, profiles: Profiles, by_group: Sequence[Profiles] = ()
) -> ControlLoop | None:
    """The decisions on backends of all sub-clusters; None where their number is fixed."""
    if config.autoscaler is None:
        return None
    models, count = scaled_parts(config, profiles, by_group), config.sub_clusters.routers
    options = replace(config.autoscaler.options(), kinds=kind_limits(config))
    return ControlLoop(options, None, models, count)


class ScaledRouters:
    """Reads all routers at once, and tells each how many backends it should have (`Steered`)."""

    def __init__(
        self,
        routers: Sequence[LeaderClient],
        backends_of: BackendsOf,
        counting: RouterCount | None = None,
        uneven: bool = False,
    ) -> None:
        """`counting` opens and closes sub-clusters, and has their backends meanwhile. Where they
        are `uneven`, the loop starts from the backends that each has."""
        self.routers = AllRouters(routers, backends_of)
        self.counting = counting
        self.uneven = uneven
        self.is_divided = False
        """Whether all routers have been seen to have targets."""

    @property
    def term(self) -> int:
        return self.routers.term

    async def snapshot(self) -> RouterSnapshot:
        """Counts of each part of an application, and the backends of each sub-cluster."""
        read = in_parts(await self.routers.snapshots())
        if self.counting is not None and not self.is_divided:
            # The loop would guess the targets, and give closed sub-clusters backends.
            self.is_divided = bool(read.wanted)
            if not self.is_divided:
                raise NoAnswerError("backends are not divided among sub-clusters yet")
        if self.uneven and not self.is_divided:
            self.is_divided = bool(read.wanted)
            if not self.is_divided:
                numbers = range(len(self.routers.routers))
                there = [await self.routers.backends_of(number) for number in numbers]
                read = replace(read, wanted=there)
        placement = replace(read.placement, closed=tuple(sorted(self._closed())))
        return replace(read, up_ns=loop_ns(), placement=placement)

    def _closed(self) -> frozenset[int]:
        held = frozenset() if self.counting is None else self.counting.held
        return self.routers.silent | held

    async def set_target(self, wanted: list[int]) -> None:
        """Tell all that have answered the last time; the others hear of it after a window."""
        silent, closed, last = self.routers.silent, self._closed(), self.routers.last
        await asyncio.gather(
            *(
                router.set_target([count])
                for number, (router, count) in enumerate(
                    zip(self.routers.routers, wanted, strict=True)
                )
                if number not in silent and (number not in closed or not last[number].wanted)
            )
        )

    async def place(self, plan: Plan) -> list[str]:
        """Applications are placed by another loop."""
        raise NoAnswerError("backends are counted here, and nothing is placed")


def in_parts(told: Sequence[RouterSnapshot]) -> RouterSnapshot:
    """All routers as one with a sub-cluster for each."""
    numbered = list(enumerate(told))
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
        pipelines={
            part_at(number, name): _in_part(number, told_of)
            for number, each in numbered
            for name, told_of in each.pipelines.items()
        },
        ranks=[_named(number, rank) for number, each in numbered for rank in each.ranks],
        # One that has come to lead since has none: all are told again.
        wanted=targets_of(told),
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


def _in_part(number: int, pipeline: PipelineSnapshot) -> PipelineSnapshot:
    """Queries that one sub-cluster has ended, with the parts that run their stages."""
    stages = [
        replace(each, application=part_at(number, each.application)) for each in pipeline.stages
    ]
    return replace(pipeline, stages=stages)


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
