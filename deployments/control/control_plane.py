"""The control plane: it adopts the routers that run or starts them, watches them, and has
backends counted, models placed and clients mapped. Plain code; a `Cluster` does the rest."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.resolve import router_config
from fermata.deployments.config.sub_clusters import is_steered_alone
from fermata.deployments.control.canaries import canaries
from fermata.deployments.control.cluster import Cluster, Router
from fermata.deployments.control.health import check_start, progress_of
from fermata.deployments.control.leader_client import LeaderClient, within
from fermata.deployments.control.policy_teller import PolicyTeller
from fermata.deployments.control.replanning import Replanner, mapping_options
from fermata.deployments.control.router_poller import RouterPoller
from fermata.deployments.control.scaling import ScalingLoop
from fermata.deployments.specs.status import DeploymentStatus
from fermata.foundation.errors import NoAnswerError
from fermata.profiles.profile import Profile
from fermata.router.live.policy_change import policies_of

PATIENCE_S = 5.0
"""A router that has not said by then whose it is, is replaced; one that has not said goodbye is
ended without."""
START_S = 30.0
"""For a router to come up before the next one: so that the first one leads."""
SETTLE_S = 2.0
"""For frontends and backends to link to a new standby; they look for it once a second."""
SEATS = 2


class ControlPlaneCore:
    """One control plane, from its start to its end."""

    def __init__(self, config: DeploymentConfig, cluster: Cluster) -> None:
        self.config = config
        self.cluster = cluster
        self.seats = LeaderClient()
        self.replanner: Replanner | None = None
        self.scaling: ScalingLoop | None = None
        self.watch: RouterPoller | None = None
        self.policies: PolicyTeller | None = None
        self.measured: tuple[str, Mapping[str, Profile]] | None = None
        """The kind of the backends, and run times of every variant."""
        self.mapping: asyncio.Task[None] | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self.starting = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        cluster = self.cluster
        kind, profiles = self.measured = await cluster.profiles()
        config = self.config
        plan = router_config(config, profiles, kind)
        wanted = SEATS if config.router.standby else 1
        # The one that does not lead first: its successor takes the lead of the other.
        last = await self._leading_seat() if wanted > 1 else 0
        found: list[Router | None] = [None] * SEATS
        found[1 - last] = await self._adopt(1 - last, wanted > 1)
        if found[1 - last] is None and wanted > 1 and await cluster.find(last) is not None:
            second = found[1 - last] = cluster.create(1 - last, plan)
            with suppress(NoAnswerError):
                await within(START_S, second.address())
                await asyncio.sleep(SETTLE_S)
        found[last] = await self._adopt(last, wanted=True)
        loop, seats = asyncio.get_running_loop(), self.seats
        for seat in range(wanted):
            router = found[seat] or cluster.create(seat, plan)
            self.tasks.append(loop.create_task(seats.keep(router)))
            # Where there is no room for one of them, the other one serves.
            with suppress(NoAnswerError):
                await within(START_S, router.address())
        await seats.found
        self.policies = PolicyTeller(seats, policies_of(plan))
        self.tasks.append(loop.create_task(self.policies.run()))
        self._map_clients()
        self.watch = RouterPoller(seats, config.name, canaries(config))
        if is_steered_alone(config):
            self.scaling = self.watch.scaling = ScalingLoop(config, profiles, seats, cluster)
            await self.scaling.start()
        if self.config is not config:
            self.set_policies(self.config)

    async def _leading_seat(self) -> int:
        """The seat of a router that leads already; the first where none does."""
        for seat in reversed(range(SEATS)):
            router = await self.cluster.find(seat)
            if router is None:
                continue
            with suppress(NoAnswerError):
                term = await within(PATIENCE_S, router.leading())
                if term:
                    return seat
        return 0

    def _map_clients(self) -> None:
        """Have clients mapped as the policies of now want it."""
        if self.mapping is not None:
            self.mapping.cancel()
        self.replanner = Replanner(self.seats, mapping_options(self.config))
        self.mapping = asyncio.get_running_loop().create_task(self.replanner.run())

    def set_policies(self, config: DeploymentConfig) -> None:
        """Serve by a configuration that differs from today's in policies alone."""
        before, self.config = self.config, config
        if self.policies is None or self.measured is None:
            # Its start is under way, and looks for that at its end.
            return
        kind, profiles = self.measured
        self.policies.wanted = policies_of(router_config(config, profiles, kind))
        if mapping_options(config) != mapping_options(before):
            self._map_clients()
        if self.scaling is not None:
            self.scaling.set_policies(config, profiles)

    async def _adopt(self, seat: int, wanted: bool) -> Router | None:
        """The router that a control plane killed before its time has left behind, if it is of the
        same code and configuration; one of another is ended."""
        router = await self.cluster.find(seat)
        if router is None:
            return None
        with suppress(NoAnswerError):
            mark = await within(PATIENCE_S, router.mark())
            if wanted and mark == self.cluster.mark:
                return router
        self.cluster.end(router)
        return None

    def progress(self) -> tuple[str, str]:
        """State of the start, and why it failed; see `progress_of`."""
        return progress_of(self.starting)

    async def status(self) -> DeploymentStatus:
        """Counters and signals of the router, and figures of the last minute."""
        # Shielded: a caller that gives up must not take the start down with it.
        await asyncio.shield(self.starting)
        assert self.watch is not None
        assert self.replanner is not None
        status = await self.watch.status()
        if self.replanner.deciders:
            status = replace(status, replanning=self.replanner.status())
        return status

    def frame(self) -> str:
        """The last second, for the page."""
        return "{}" if self.watch is None else self.watch.frame()

    def check(self) -> None:
        """Raise what a control plane cannot go on after, such as the end of a router that somebody
        else has ended: whoever takes its place makes another."""
        check_start(self.starting)
        if self.progress()[0] == "failed":
            return
        for task in (self.mapping, *self.tasks):
            if task is not None and task.done() and not task.cancelled():
                task.result()
        if self.watch is not None:
            self.watch.check()
        if self.scaling is not None:
            self.scaling.check()

    async def end(self) -> None:
        """Leave the routers to a successor, which adopts them, or ends them once its own can be
        made; where there will be none, end them."""
        for task in (self.starting, self.mapping, *self.tasks):
            if task is not None:
                task.cancel()
        if self.scaling is not None:
            self.scaling.stop()
        if self.watch is not None:
            self.watch.stop()
        if await self.cluster.is_followed():
            return
        for seat in reversed(range(SEATS)):
            # By their names: one may have been found or made just when this end came.
            with suppress(NoAnswerError):
                router = await self.cluster.find(seat)
                if router is not None:
                    await self._end_router(router)

    async def _end_router(self, router: Router) -> None:
        """In order where it can be."""
        with suppress(NoAnswerError):
            await within(PATIENCE_S, router.stop("the application ends"))
        self.cluster.end(router)
