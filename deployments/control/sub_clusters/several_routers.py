"""The control plane of several sub-clusters: one `ControlPlaneCore` for the router of each, and the
directory that tells frontends which applications live where."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from fermata.autoscaler.capacity import RULES as CAPACITY
from fermata.autoscaler.control_loop import ControlLoop
from fermata.autoscaler.router_count import RouterCount
from fermata.deployments.config.backend_groups import are_apart, own_config
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.sub_clusters import (
    backend_counts,
    epochs_between,
    restricted,
    serving,
)
from fermata.deployments.control.cluster import Cluster
from fermata.deployments.control.control_plane import PATIENCE_S, SEATS, ControlPlaneCore
from fermata.deployments.control.device_memory import room_bytes
from fermata.deployments.control.health import check_start, progress_of
from fermata.deployments.control.leader_client import within
from fermata.deployments.control.scaling import ScalingLoop, kept_plan
from fermata.deployments.control.sub_clusters.all_routers import AWAIT_S
from fermata.deployments.control.sub_clusters.directory_teller import DirectoryTeller
from fermata.deployments.control.sub_clusters.homes import (
    DirectoryKeeper,
    Homes,
    all_run,
    first_directory,
    homes_of,
    known_homes,
    movable,
    served_at,
    starting_problem,
)
from fermata.deployments.control.sub_clusters.kinds import Profiles, able_on
from fermata.deployments.control.sub_clusters.merging import merged_frame, merged_status
from fermata.deployments.control.sub_clusters.moves import HomeMoves
from fermata.deployments.control.sub_clusters.moving_routers import (
    MovingRouters,
    counting_of,
    loaded_at,
    loop_ns,
    moving_loop,
)
from fermata.deployments.control.sub_clusters.scaled_routers import (
    ScaledRouters,
    scaled_parts,
    scaling_control,
)
from fermata.deployments.control.sub_clusters.units import stages_by_pipeline
from fermata.deployments.specs.status import DeploymentStatus, RouterStatus
from fermata.foundation.errors import ConfigError, NoAnswerError, ServingError
from fermata.foundation.logs import LOG, fields
from fermata.profiles.profile import Profile
from fermata.router.links.directory import Directory

SOLVE_S = 2.0
"""Time to search for the first plan in."""
LOOK_S = 1.0
"""Between two looks at the headroom of sub-clusters; readings of it are a second apart."""
ClusterOf = Callable[[DeploymentConfig, int], Cluster]
"""Makes the cluster of one sub-cluster, with the deployment as its router sees it."""


class SeveralRouters:
    """Does for all sub-clusters what a `ControlPlaneCore` does for one."""

    def __init__(
        self,
        config: DeploymentConfig,
        cluster_of: ClusterOf,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.config = config
        self.wall_ms = wall_ms
        self.cluster_of = cluster_of
        self.cluster = cluster_of(config, 0)
        self.homes: Homes = {}
        self.by_group: tuple[Profiles, ...] = ()
        """Run times on each group of backends, where these are sub-clusters."""
        self.rooms: tuple[int, ...] = ()
        """By sub-cluster: room for models on its devices, as told at the start; 0: not known."""
        self.counting: RouterCount | None = None
        """Decides how many sub-clusters serve, where that is not given."""
        self.cores: list[ControlPlaneCore] = []
        """By sub-cluster."""
        self.tellers: list[DirectoryTeller] = []
        self.moves: HomeMoves | None = None
        self.epochs: ScalingLoop | None = None
        """Decides where applications live, where they move."""
        self.scaling: ScalingLoop | None = None
        """Decides how many backends each sub-cluster has, where that changes."""
        self.tasks: list[asyncio.Task[None]] = []
        self.loop = asyncio.get_running_loop()
        self.starting = self.loop.create_task(self._start())

    async def _start(self) -> None:
        config, cluster_of = self.config, self.cluster_of
        by_group, start_rps = await asyncio.gather(self._profiles(), self._start_rps())
        rooms = self.rooms = await self._rooms()
        profiles = by_group[0]
        by_group = self.by_group = by_group if are_apart(config) else ()
        before = await self._known_directory()
        counting = self.counting = counting_of(config, profiles, before, start_rps)
        opened = config.sub_clusters.routers if counting is None else counting.opened
        control = moving_loop(config, profiles, counting, start_rps, by_group, rooms)
        known = known_homes(config, before, by_group)
        self.homes = known or await self._solve(profiles, control, opened)
        told = first_directory(config, self.homes, before, self.wall_ms(), opened)
        self.keeper = DirectoryKeeper(told, stages_by_pipeline(config))
        if control is not None:
            self.moves = HomeMoves(self.keeper, movable(config))
        for number in range(config.sub_clusters.routers):
            own = self._own(config, number)
            core = ControlPlaneCore(own, cluster_of(own, number))
            self.cores.append(core)
            served = None if self.moves is None else self.moves.served_at
            teller = DirectoryTeller(core.seats, number, lambda: self.keeper.directory, served)
            self.tellers.append(teller)
            self.tasks.append(self.loop.create_task(teller.run()))
        await self._await_cores()
        self.tasks.append(self.loop.create_task(self._follow()))
        self._decide(config, profiles, control)
        if self.config is not config:
            self.set_policies(self.config)

    async def _profiles(self) -> tuple[Profiles, ...]:
        """Run times on the backends of each group that is a sub-cluster, else on the first ones."""
        config = self.config
        numbers = range(config.sub_clusters.routers if are_apart(config) else 1)
        clusters = [self.cluster_of(own_config(config, each), each) for each in numbers]
        found = await asyncio.gather(*(each.profiles() for each in clusters))
        return tuple(profiles for _, profiles in found)

    async def _rooms(self) -> tuple[int, ...]:
        """Room for models on the devices of each sub-cluster. Unless it is a group they are alike,
        and not all need have backends yet."""
        config, routers = self.config, self.config.sub_clusters.routers
        if not are_apart(config):
            return (room_bytes(await self.cluster.device_bytes()),) * routers
        clusters = [self.cluster_of(own_config(config, at), at) for at in range(routers)]
        found = await asyncio.gather(*(each.device_bytes() for each in clusters))
        return tuple(map(room_bytes, found))

    async def _start_rps(self) -> float | None:
        """R_max to start from; None where nothing is planned by it, or the trial failed."""
        if epochs_between(self.config) is None:
            return None
        carried_rps = await self.cluster.router_speed()
        if carried_rps is None:
            return None
        found = CAPACITY.start_rps(carried_rps)
        LOG.info("the rate of one router was tried", extra=fields(rate_rps=round(found)))
        return found

    async def _await_cores(self) -> None:
        """Wait for all routers, or for long enough: one that is dead must not keep the others from
        being decided for. It is taken in once it leads."""
        starting, wait_s = [each.starting for each in self.cores], AWAIT_S
        while not (done := (await asyncio.wait(starting, timeout=wait_s))[0]):
            pass
        for each in done:
            each.result()
        if len(done) < len(starting):
            late = [at for at, each in enumerate(starting) if not each.done()]
            LOG.warning("routers do not come up; others serve", extra=fields(sub_clusters=late))

    def _decide(
        self,
        config: DeploymentConfig,
        profiles: Mapping[str, Profile],
        epochs: ControlLoop | None,
    ) -> None:
        """Have windows and epochs decided, over all routers."""
        seats, self.profiles = [each.seats for each in self.cores], profiles
        if self.moves is not None:
            moving = MovingRouters(self.moves, seats, self._backends_of, self.wall_ms)
            self.epochs = ScalingLoop(config, profiles, moving, self.cluster, epochs)
        windows = scaling_control(config, profiles, self.by_group)
        if windows is not None:
            scaled = ScaledRouters(seats, self._backends_of, self.counting, are_apart(config))
            self.scaling = ScalingLoop(config, profiles, scaled, self.cluster, windows)
        for each in self._loops():
            self.tasks.append(self.loop.create_task(_begin(each)))

    async def _backends_of(self, number: int) -> int:
        return await self.cluster_of(self.config, number).backends_here()

    def _loops(self) -> list[ScalingLoop]:
        return [each for each in (self.epochs, self.scaling) if each is not None]

    def _own(self, config: DeploymentConfig, number: int) -> DeploymentConfig:
        own = restricted(config, number, served_at(self.homes, number))
        if self.by_group:
            known = able_on(config, self.by_group)[number]
            own = serving(own, known)
            if not own.applications:
                raise ConfigError(f"backends.{number}: no application holds its SLO there")
        own.check_backends()
        return own

    async def _known_directory(self) -> Directory | None:
        """The newest directory that a router knows of, told by a control plane before this one."""
        found: Directory | None = None
        for number in range(self.config.sub_clusters.routers):
            for seat in range(SEATS):
                with suppress(NoAnswerError):
                    router = await self.cluster_of(self.config, number).find(seat)
                    if router is not None:
                        told = await within(PATIENCE_S, router.directory())
                        if told is not None and (found is None or told.version > found.version):
                            found = told
        return found

    async def _solve(
        self, profiles: Mapping[str, Profile], control: ControlLoop | None, opened: int
    ) -> Homes:
        """Homes by the plan of the last run, where it is of the same applications, or anew."""
        kept = None if control is None or control.placer is None else control.placer.options
        plan = kept_plan(kept)
        problem = starting_problem(self.config, profiles, opened, self.by_group, self.rooms)
        if (
            plan is None
            or plan.home.keys() != movable(self.config).keys()
            or max(plan.home.values(), default=0) >= opened
            or not all_run(problem, plan)
        ):
            plan = await self.cluster.solve(problem, SOLVE_S)
        homes = homes_of(self.config, plan, opened, problem, self.by_group)
        about = {name: ", ".join(map(str, at)) for name, at in homes.items()}
        LOG.info("applications have their sub-clusters", extra=fields(homes=about))
        return homes

    async def _follow(self) -> None:
        """Have the directory follow routers and their headroom."""
        while True:
            self.keeper.on_routers([each.home for each in self.tellers], self.wall_ms())
            if self.counting is not None:
                await self._divide(self.counting)
            self.keeper.on_headroom(self._headroom(), self.wall_ms())
            if self.moves is not None:
                self.moves.on_time(loop_ns())
            await asyncio.sleep(LOOK_S)

    async def _divide(self, counting: RouterCount) -> None:
        """Have open sub-clusters serve what lives everywhere, and routers know how many backends to
        have until the autoscaler tells them."""
        latest = {
            number: core.watch.latest.router
            for number, core in enumerate(self.cores)
            if core.watch is not None and core.watch.latest is not None
        }
        loaded = {at: loaded_at([each], ())[0] for at, each in latest.items() if each.backends}
        self.keeper.on_open(counting.closed, loaded, self.wall_ms())
        if self.scaling is not None and self.scaling.targets:
            return
        counts = backend_counts(self.config, counting.opened)
        for number, told in latest.items():
            if not told.wanted:
                with suppress(NoAnswerError):
                    await self.cores[number].seats.set_target([counts[number]])

    def _headroom(self) -> dict[int, float]:
        """Idle fraction of each sub-cluster that is known to have backends: of these, or of what
        its router carries where that is less."""
        found: dict[int, float] = {}
        for number, core in enumerate(self.cores):
            latest = None if core.watch is None else core.watch.latest
            if core.watch is not None and latest is not None and latest.router.backends:
                busy = core.watch.history.router_busy(latest.router)
                router = max(0.0, 1.0 - busy / CAPACITY.busy_max)
                found[number] = min(latest.idle_fractions[0], router)
        return found

    def set_policies(self, config: DeploymentConfig) -> None:
        """Serve by a configuration that differs from today's in policies alone."""
        self.config = config
        for number, core in enumerate(self.cores):
            core.set_policies(self._own(config, number))
        if self.scaling is not None:
            self.scaling.control.set_models(scaled_parts(config, self.profiles, self.by_group))

    def progress(self) -> tuple[str, str]:
        """State of the start, and why it failed; see `progress_of`."""
        return progress_of(self.starting)

    async def status(self) -> DeploymentStatus:
        """Counters and signals of all routers; one that does not answer is left out."""
        await asyncio.shield(self.starting)
        # One that has never come up would be waited for.
        started = {at: each for at, each in enumerate(self.cores) if each.starting.done()}
        found = await asyncio.gather(
            *(each.status() for each in started.values()), return_exceptions=True
        )
        known = {
            at: each
            for at, each in zip(started, found, strict=True)
            if isinstance(each, DeploymentStatus)
        }
        for each in found:
            if not isinstance(each, DeploymentStatus | NoAnswerError):
                raise each
        if not known:
            raise NoAnswerError("no router answers")
        routers = [self._told(number, each) for number, each in known.items()]
        merged = replace(merged_status(known), routers=routers)
        scaling = [each.status(merged.router) for each in (self.scaling, self.epochs) if each]
        if len(scaling) > 1:
            scaling[0] = replace(
                scaling[0],
                plan=scaling[1].plan,
                moved=scaling[1].moved,
                router_rps_max=scaling[1].router_rps_max,
                routers_needed=scaling[1].routers_needed,
            )
        return replace(merged, scaling=scaling[0]) if scaling else merged

    def _told(self, number: int, status: DeploymentStatus) -> RouterStatus:
        shares = self.keeper.directory.applications
        return RouterStatus(
            number,
            status.router.term,
            status.router.pid,
            self.tellers[number].home.address,
            {name: dict(at)[number] for name, at in sorted(shares.items()) if number in dict(at)},
        )

    def frame(self) -> str:
        """The last second, for the page."""
        frames = {number: core.frame() for number, core in enumerate(self.cores)}
        return merged_frame(frames, None if self.moves is None else self.keeper.directory)

    def check(self) -> None:
        """Raise what a control plane cannot go on after."""
        check_start(self.starting)
        for core in self.cores:
            core.check()
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()
        for loop in self._loops():
            loop.check()

    async def end(self) -> None:
        """Leave the routers to a successor, or end them."""
        for task in (self.starting, *self.tasks):
            task.cancel()
        for loop in self._loops():
            loop.stop()
        await asyncio.gather(*(each.end() for each in self.cores))
        if len(self.cores) < self.config.sub_clusters.routers:
            await self._end_others()

    async def _end_others(self) -> None:
        """End what an earlier control plane has left, where this one has not come to adopt it."""
        if await self.cluster.is_followed():
            return
        for number in range(len(self.cores), self.config.sub_clusters.routers):
            cluster = self.cluster_of(self.config, number)
            for seat in reversed(range(SEATS)):
                with suppress(NoAnswerError):
                    router = await cluster.find(seat)
                    if router is not None:
                        cluster.end(router)


async def _begin(loop: ScalingLoop) -> None:
    """Have windows or epochs begin once all routers answer."""
    while True:
        try:
            await loop.start()
            return
        except ServingError as error:
            LOG.info("not all routers answer; decisions begin later", extra=fields(reason=error))
            await asyncio.sleep(LOOK_S)
