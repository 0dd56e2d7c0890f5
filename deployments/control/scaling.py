"""The control loop in a deployment: it decides; routers, Serve and a solver carry it out."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fermata.applications.accuracy_goal import rated_variants
from fermata.applications.reader import owners_of
from fermata.autoscaler.control_loop import (
    NO_TERM,
    ControlEffect,
    ControlLoop,
    SetTargets,
    WindowEnded,
)
from fermata.autoscaler.cost import allocate_cost
from fermata.autoscaler.options import EpochOptions
from fermata.autoscaler.placer import ApplyPlan, GiveUpMove, KeepPlan, LeaveInPlace, SolvePlacement
from fermata.autoscaler.readings import (
    ApplicationReading,
    ClusterReading,
    PipelineReading,
    PoolReading,
    SubClusterReading,
)
from fermata.autoscaler.rule import ScalingAdvice
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.sub_clusters import epochs_inside
from fermata.deployments.control.cluster import Cluster, Steered
from fermata.deployments.control.device_memory import reported_rooms, room_bytes
from fermata.deployments.specs.status import AdviceStatus, ScalingStatus
from fermata.foundation.errors import ConfigError, ServingError
from fermata.foundation.logs import LOG, fields
from fermata.foundation.units import SECOND
from fermata.partitioner.applications import placed_application
from fermata.partitioner.plan import PlacedModel, Plan
from fermata.partitioner.plan_file import by_name, load_plan, save_json
from fermata.profiles.profile import Profile
from fermata.router.core.events import GOOD, is_bad
from fermata.router.telemetry.snapshot import PoolSnapshot, RouterSnapshot

ARRIVE_S = 0.2
"""Time between two readings while a plan is being applied."""
LOOK_S = 0.5
"""Time between two looks whether another router leads."""


def reading_of(snapshot: RouterSnapshot) -> ClusterReading:
    """The counters that the control loop reads, out of a router's snapshot."""
    return ClusterReading(
        at_ns=snapshot.up_ns,
        term=snapshot.term,
        applications={
            name: ApplicationReading(
                each.requests,
                each.good - each.parts_good,
                each.bad - each.parts_bad,
                snapshot.busy_ns.get(name, 0),
                each.rated,
                each.expected_right,
            )
            for name, each in snapshot.applications.items()
        },
        sub_clusters=tuple(
            SubClusterReading(
                each.backends,
                each.backend_up_ns,
                each.backend_busy_ns,
                each.least,
                tuple(map(_pool_reading, each.pools)),
                each.router_cpu_ns,
                each.router_requests,
                each.settled_requests,
                room,
            )
            for each, room in zip(snapshot.ranks, reported_rooms(snapshot), strict=True)
        ),
        plan=Plan(snapshot.placement.applications),
        pipelines={
            name: PipelineReading(
                frozenset(stage.application for stage in each.stages),
                each.ended.get(GOOD, 0),
                sum(count for outcome, count in each.ended.items() if is_bad(outcome)),
            )
            for name, each in snapshot.pipelines.items()
        },
        on_their_way=frozenset(snapshot.placement.on_their_way),
        targets=tuple(snapshot.wanted),
        closed=frozenset(snapshot.placement.closed),
        bare=frozenset(snapshot.placement.bare),
        planned=snapshot.placement.planned,
    )


def _pool_reading(pool: PoolSnapshot) -> PoolReading:
    return PoolReading(
        tuple(pool.applications),
        tuple(pool.untold),
        pool.share,
        pool.backends,
        pool.backend_up_ns,
        pool.backend_busy_ns,
        pool.least,
    )


def placed_models(
    config: DeploymentConfig, profiles: Mapping[str, Profile]
) -> tuple[PlacedModel, ...]:
    """The applications as placement sees them, by the names that the router has for them."""
    accuracy = None if config.autoscaler is None else config.autoscaler.accuracy
    router, found = config.router, list[PlacedModel]()
    owners = owners_of(config.served, router.policy, router.policy_options)
    for each, (name, policy, options) in zip(config.served, owners, strict=True):
        own = [profiles[variant.name] for variant in each.variants]
        sizes = [variant.batch_size_max for variant in each.variants]
        choices = rated_variants(each, own, policy, options, accuracy)
        goal = accuracy if choices else None
        placed = placed_application(name, own, sizes, each.slo_ns, choices=choices, accuracy=goal)
        found.append(placed)
    return tuple(found)


def control_loop(config: DeploymentConfig, profiles: Mapping[str, Profile]) -> ControlLoop:
    """The decisions for one router: its backends, and sub-clusters that are parts of it."""
    autoscaler = None if config.autoscaler is None else config.autoscaler.options()
    given = epochs_inside(config)
    epochs = None if given is None else given.options(config.backend.memory_mb)
    return ControlLoop(autoscaler, epochs, placed_models(config, profiles))


class ScalingLoop:
    """Drives a `ControlLoop`: reads the router that leads, and carries the effects out."""

    def __init__(
        self,
        config: DeploymentConfig,
        profiles: Mapping[str, Profile],
        router: Steered,
        cluster: Cluster,
        control: ControlLoop | None = None,
    ) -> None:
        """`control` decides in place of the loop that the configuration asks for."""
        self.control = control or control_loop(config, profiles)
        self.autoscaler = self.control.autoscaler
        placer = self.control.placer
        self.epochs = None if placer is None else placer.options
        self.router = router
        self.cluster = cluster
        self.pending: list[ControlEffect] = []
        """Effects that are not carried out yet."""
        self.advice: tuple[ScalingAdvice, ...] = ()
        self.term = NO_TERM
        """Term of the router that was last known to have targets and plan."""
        self.is_silent = False
        """Whether the router did not answer the last time."""
        self.solving: asyncio.Task[Plan] | None = None
        self.running: asyncio.Task[None] | None = None

    def set_policies(self, config: DeploymentConfig, profiles: Mapping[str, Profile]) -> None:
        """Count with the variants that other policies choose from."""
        self.control.set_models(placed_models(config, profiles))

    @property
    def targets(self) -> list[int]:
        """Backends wanted in each sub-cluster."""
        return list(self.control.targets)

    async def start(self) -> None:
        """Go on where the last control plane has stopped; returns once the models are placed."""
        self.clock = asyncio.get_running_loop()
        reading = reading_of(await self.router.snapshot())
        there = 0 if self.autoscaler is None else await self.cluster.backends_there()
        if self.epochs is not None and not self.epochs.memory_bytes_by:
            reading = await self._with_rooms(reading)
        self.control.on_start(self._now_ns(), reading, there, kept_plan(self.epochs))
        self.term = reading.term
        await self._carry_out()
        while self.control.is_placing:
            if self.solving is not None:
                self.control.on_solved(await self.solving)
                self.solving = None
            else:
                await self._read()
            await self._carry_out()
            if self.control.is_placing and self.solving is None:
                await asyncio.sleep(ARRIVE_S)
        self.running = self.clock.create_task(self._run())

    async def _with_rooms(self, reading: ClusterReading) -> ClusterReading:
        """The reading with the memory of devices, also where no report of a backend has come."""
        if any(each.memory_bytes for each in reading.sub_clusters):
            return reading
        room = room_bytes(await self.cluster.device_bytes())
        told = tuple(replace(each, memory_bytes=room) for each in reading.sub_clusters)
        return replace(reading, sub_clusters=told)

    def stop(self) -> None:
        for task in (self.running, self.solving):
            if task is not None:
                task.cancel()

    def check(self) -> None:
        """Raise what has ended the loop: a control plane without it must be replaced."""
        if self.running is not None and self.running.done() and not self.running.cancelled():
            self.running.result()

    def status(self, snapshot: RouterSnapshot) -> ScalingStatus:
        """Advice, plan and bill, for `/status`."""
        spec, placer, counting = self.autoscaler, self.control.placer, self.control.counting
        price = 0.0 if spec is None else spec.price_per_hour
        up_ns = sum(each.backend_up_ns for each in snapshot.ranks)
        busy = {name: float(ns) for name, ns in snapshot.busy_ns.items()}
        home = {} if placer is None else placer.plan.home
        return ScalingStatus(
            dry_run=spec is not None and spec.dry_run,
            advice=[
                AdviceStatus(each.target, each.change, each.reason, each.demand)
                for each in self.advice
            ],
            plan={name: str(index) for name, index in home.items()},
            moved=0 if placer is None else placer.moved,
            bill=list(allocate_cost(busy, up_ns, price)) if busy else [],
            router_rps_max=None if placer is None else placer.capacity.rate_rps,
            routers_needed=None if counting is None else counting.needed,
        )

    # Readings

    def _now_ns(self) -> int:
        return round(self.clock.time() * SECOND)

    async def _read(self) -> None:
        reading = reading_of(await self.router.snapshot())
        self.control.on_reading(self._now_ns(), reading)

    async def _run(self) -> None:
        while True:
            await self._rest()
            try:
                await self._step()
            except ServingError as error:
                self.control.on_no_answer(self._now_ns())
                if not self.is_silent:
                    LOG.warning("router did not answer", extra=fields(reason=error))
                self.is_silent = True

    async def _rest(self) -> None:
        """Wait until a reading is due, a plan is found, or another router may lead."""
        due_s = (self.control.wake_at_ns() - self._now_ns()) / SECOND
        wait_s = ARRIVE_S if self.control.is_applying else LOOK_S
        wait_s = max(0.0, min(wait_s, due_s))
        if self.solving is None:
            await asyncio.sleep(wait_s)
        else:
            await asyncio.wait({self.solving}, timeout=wait_s)

    async def _step(self) -> None:
        leader = self.router.term
        if self.solving is not None and self.solving.done():
            self._on_solved(self.solving)
        elif (
            self.control.is_applying
            or leader not in (0, self.control.informed_term)
            or self._now_ns() >= self.control.wake_at_ns()
        ):
            await self._read()
            self.is_silent = False
        await self._carry_out()
        if self.control.informed_term not in (NO_TERM, self.term):
            self.term = self.control.informed_term
            LOG.info("replayed targets and plan to new leader", extra=fields(term=self.term))

    def _on_solved(self, solving: "asyncio.Task[Plan]") -> None:
        self.solving = None
        try:
            self.control.on_solved(solving.result())
        except ServingError as error:
            self.control.on_unsolved()
            # It may ask for another one, within wider limits.
            if not self.control.is_placing:
                about = fields(reason=error)
                LOG.warning("no plan was found; the last placement stays", extra=about)

    # Effects

    async def _carry_out(self) -> None:
        self.pending += self.control.take_effects()
        while self.pending:
            # One that fails is not repeated: the next reading shows what is missing.
            await self._carry_out_one(self.pending.pop(0))

    async def _carry_out_one(self, effect: ControlEffect) -> None:
        if isinstance(effect, SetTargets):
            await self.router.set_target(list(effect.targets))
        elif isinstance(effect, ApplyPlan):
            await self.router.place(effect.plan)
        elif isinstance(effect, SolvePlacement):
            search = self.cluster.solve(effect.problem, effect.limit_s)
            self.solving = self.clock.create_task(search)
        elif isinstance(effect, WindowEnded):
            self._on_window(effect)
        elif isinstance(effect, KeepPlan):
            self._keep_plan(effect.plan)
        elif isinstance(effect, LeaveInPlace):
            about = fields(models=list(effect.models))
            LOG.warning("no room to move without a gap; left where they are", extra=about)
        elif isinstance(effect, GiveUpMove):
            about = fields(models=list(effect.models), remedy="see the backends' failed loads")
            LOG.warning("models were not loaded in time; left where they are", extra=about)

    def _on_window(self, ended: WindowEnded) -> None:
        self.advice = ended.advice
        if ended.targets != ended.before:
            reasons = [each.reason for each in ended.advice]
            before, wanted = list(ended.before), list(ended.targets)
            about = fields(before=before, wanted=wanted, reasons=reasons)
            LOG.info("autoscaler decides", extra=about)

    # The last plan

    def _keep_plan(self, plan: Plan) -> None:
        path = _plan_file(self.epochs)
        if path is None or self.epochs is None:
            return
        try:
            save_json(path, {"plan": by_name(plan, _names(self.epochs)), "at_s": time.time()})
        except OSError as error:
            LOG.warning("cannot keep the placement", extra=fields(path=path, reason=error))


def _plan_file(options: EpochOptions | None) -> Path | None:
    return Path(options.plan_file) if options is not None and options.plan_file else None


def _names(options: EpochOptions) -> list[str]:
    """Sub-clusters as the plan file calls them."""
    return [str(index) for index in range(options.sub_clusters)]


def kept_plan(options: EpochOptions | None) -> Plan | None:
    """The plan of the last run; None where there is none that can be read."""
    path = _plan_file(options)
    if path is None or options is None or not path.exists():
        return None
    try:
        return load_plan(path, _names(options))
    except ConfigError as error:
        LOG.warning("cannot read the kept placement", extra=fields(reason=error))
        return None
