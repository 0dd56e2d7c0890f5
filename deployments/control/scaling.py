"""The control plane's loops: windows for the number of backends, epochs for where models live."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fermata.autoscaler.cost import allocate_cost
from fermata.autoscaler.rule import RuleOptions, RuleState, ScalingAdvice, Window, advise, share_out
from fermata.deployments.config.deployment import ApplicationConfig, DeploymentConfig
from fermata.deployments.config.resolve import router_names
from fermata.deployments.config.scaling import AutoscalerConfig
from fermata.deployments.control.cluster import Cluster
from fermata.deployments.control.leader_client import LeaderClient
from fermata.foundation.errors import NoAnswerError, ServingError
from fermata.foundation.logs import LOG, fields
from fermata.partitioner.plan import PlacedModel, Problem, Stage, SubCluster, stages
from fermata.profiles.profile import Profile

ROOMY_BYTES = 1 << 50
"""Where no memory limit is configured."""
ARRIVE_S = 0.2
"""Between two looks at models on their way."""
LOOK_S = 0.5
"""Between two looks whether another router leads."""


def rule_options(config: AutoscalerConfig) -> RuleOptions:
    return RuleOptions(
        minimum=config.minimum,
        maximum=config.maximum,
        to_zero=config.to_zero,
        bad_rate_max=config.bad_rate_max,
        idle=config.idle,
        lead=1.0 + config.startup_s / config.window_s,
    )


def windows_between(
    before: Mapping[str, Any], after: Mapping[str, Any], targets: Sequence[int]
) -> list[Window]:
    """What each sub-cluster did between two snapshots of the router. What was asked for and is
    not there yet counts as on its way; what was released and is still there, as gone."""
    span_ns = max(1, after["up_ns"] - before["up_ns"])
    home = after["placement"]["applications"]
    found: list[Window] = []
    for rank, (old, new) in enumerate(zip(before["ranks"], after["ranks"], strict=True)):
        mine = [name for name, where in home.items() if where == rank]
        good = sum(_grown(before, after, name, "good") for name in mine)
        bad = sum(_bad(after, name) - _bad(before, name) for name in mine)
        up = min(int(new["backends"]), targets[rank])
        found.append(
            Window(
                backends=(new["backend_up_ns"] - old["backend_up_ns"]) / span_ns,
                busy=(new["backend_busy_ns"] - old["backend_busy_ns"]) / span_ns,
                requests=good + bad,
                bad=bad,
                wanted=new["least"],
                up=up,
                starting=targets[rank] - up,
            )
        )
    return found


def _grown(before: Mapping[str, Any], after: Mapping[str, Any], name: str, key: str) -> int:
    return int(after["applications"][name][key] - before["applications"][name][key])


def _bad(snapshot: Mapping[str, Any], name: str) -> int:
    counts = snapshot["applications"][name]
    dropped = sum(count for reason, count in counts["dropped"].items() if reason != "cancelled")
    return int(counts["late"] + dropped)


def rates_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Requests per second of each application."""
    span_s = max(1e-9, (after["up_ns"] - before["up_ns"]) / 1e9)
    return {
        name: _grown(before, after, name, "requests") / span_s for name in after["applications"]
    }


def spread(count: int, ranks: int) -> list[int]:
    """As evenly as it goes."""
    share, more = divmod(count, ranks)
    return [share + (rank < more) for rank in range(ranks)]


def _running_plan(snapshot: Mapping[str, Any]) -> dict[str, str]:
    """Where the router has been told to serve applications from; empty where it has not been: then
    they are all on its first sub-cluster."""
    home: Mapping[str, int] = snapshot["placement"]["applications"]
    return {name: str(rank) for name, rank in home.items()} if any(home.values()) else {}


class ScalingLoop:
    """Reads the router's signals, decides, and tells the router; Serve and the router act."""

    def __init__(
        self,
        config: DeploymentConfig,
        profiles: Mapping[str, Profile],
        router: LeaderClient,
        cluster: Cluster,
    ) -> None:
        self.config = config
        self.names = router_names(config)
        self.profiles = profiles
        self.router = router
        self.cluster = cluster
        ranks = 1 if config.epochs is None else config.epochs.sub_clusters
        self.states = [RuleState() for _ in range(ranks)]
        self.targets = spread(config.backend.count, ranks)
        self.advice: list[ScalingAdvice] = []
        self.plan: dict[str, str] = {}
        self.moved = 0
        """Applications that plans have moved so far."""
        self.told_epoch = 0
        """Of the router that knows targets and plan."""
        self.moving = asyncio.Lock()
        """Held by whoever tells the router where models live."""
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Go on where the last control plane has stopped; then look again and again."""
        told = await self.router.snapshot()
        self.told_epoch = told["epoch"]
        if self.config.epochs is not None:
            self.plan = _running_plan(told) or self._kept_plan() or await self._solve({}, {})
            await self._tell_plan(self.plan)
        loop = asyncio.get_running_loop()
        if self.config.autoscaler is not None:
            # Whatever was configured long ago: to ask for that would end backends in use.
            there = await self.cluster.backends_there()
            self.targets = list(told["wanted"]) or spread(there, len(self.states))
            self.tasks.append(loop.create_task(self._windows(self.config.autoscaler)))
        if self.config.epochs is not None:
            self.tasks.append(loop.create_task(self._epochs(self.config.epochs.every_s)))
        self.tasks.append(loop.create_task(self._tell_others()))

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()

    def check(self) -> None:
        """Raise what has ended a loop: a control plane without it must be replaced."""
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()

    def describe(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """For `/status`: advice, plan and bill."""
        told = [
            {
                "target": each.target,
                "change": each.change,
                "reason": each.reason,
                "demand": each.demand,
            }
            for each in self.advice
        ]
        spec = self.config.autoscaler
        price = 0.0 if spec is None else spec.price_per_hour
        up_ns = sum(rank["backend_up_ns"] for rank in snapshot["ranks"])
        busy = {name: float(ns) for name, ns in snapshot["busy_ns"].items()}
        bill = [asdict(each) for each in allocate_cost(busy, up_ns, price)] if busy else []
        return {
            "dry_run": spec is not None and spec.dry_run,
            "advice": told,
            "plan": self.plan,
            "moved": self.moved,
            "bill": bill,
        }

    # Routers that come

    async def _tell_others(self) -> None:
        """A router that has just come to lead wants nothing, and has every application on its first
        sub-cluster."""
        while True:
            await asyncio.sleep(LOOK_S)
            epoch = self.router.epoch
            if epoch == self.told_epoch:
                continue
            try:
                await self._tell_all()
                self.told_epoch = epoch
                LOG.info("another router has been told", extra=fields(epoch=epoch))
            except NoAnswerError as error:
                LOG.warning("another router has not been told", extra=fields(reason=error))

    async def _tell_all(self) -> None:
        spec = self.config.autoscaler
        scales = spec is not None and not spec.dry_run
        # Another control plane may have told it something newer.
        if scales and not (await self.router.snapshot())["wanted"]:
            await self.router.set_target(self.targets)
        if self.config.epochs is not None:
            async with self.moving:
                await self._tell_plan(self.plan)

    # Windows

    async def _windows(self, spec: AutoscalerConfig) -> None:
        options = rule_options(spec)
        before: dict[str, Any] | None = None
        while True:
            try:
                after = await self.router.snapshot()
                # The router keeps what is wanted: another control plane may have been there.
                self.targets = list(after["wanted"]) or self.targets
                if before is not None and after["epoch"] == before["epoch"]:
                    await self._decide(options, spec, windows_between(before, after, self.targets))
            except NoAnswerError as error:
                LOG.warning("no signals from the router", extra=fields(reason=error))
            else:
                before = after
            await asyncio.sleep(spec.window_s)

    async def _decide(
        self, options: RuleOptions, spec: AutoscalerConfig, seen: list[Window]
    ) -> None:
        share = replace(options, minimum=-(-options.minimum // len(seen)))
        self.advice = [
            advise(share, state, window) for state, window in zip(self.states, seen, strict=True)
        ]
        self.states = [each.state for each in self.advice]
        names = [str(rank) for rank in range(len(seen))]
        given = share_out(
            dict(zip(names, (each.target for each in self.advice), strict=True)),
            dict(zip(names, (each.demand for each in self.advice), strict=True)),
            dict.fromkeys(names, share.minimum),
            options.maximum,
        )
        if spec.dry_run:
            return
        wished = [given[name] for name in names]
        if wished != self.targets:
            reasons = [each.reason for each in self.advice]
            about = fields(before=self.targets, wanted=wished, reasons=reasons)
            LOG.info("autoscaler decides", extra=about)
        self.targets = wished
        await self.router.set_target(wished)

    # Epochs

    async def _epochs(self, every_s: float) -> None:
        spec = self.config.epochs
        assert spec is not None
        before: dict[str, Any] | None = None
        while True:
            try:
                after = await self.router.snapshot()
                if before is not None and after["epoch"] == before["epoch"]:
                    await self._replan(rates_between(before, after))
            except ServingError as error:
                LOG.warning("the last placement stays", extra=fields(reason=error))
            else:
                before = after
            await asyncio.sleep(every_s)

    async def _replan(self, rates: Mapping[str, float]) -> None:
        spec = self.config.epochs
        assert spec is not None
        load = [0.0] * spec.sub_clusters
        for name, home in self.plan.items():
            load[int(home)] += rates.get(name, 0.0)
        mean = sum(load) / len(load)
        if mean <= 0.0 or max(load) - min(load) <= spec.imbalance * mean:
            return
        plan = await self._solve(rates, self.plan)
        async with self.moving:
            for stage in stages(self._problem(rates, self.plan), plan):
                if stage.gap:
                    # Whatever follows counts on the room that it would make.
                    about = fields(models=[move.model for move in stage.moves])
                    LOG.warning("no room to move without a gap; left where they are", extra=about)
                    break
                await self._make(stage)
        self._keep_plan()

    async def _make(self, stage: Stage) -> None:
        """One stage: the router loads, switches over, unloads."""
        wished = {move.model: move.target for move in stage.moves if move.target is not None}
        plan = {**self.plan, **wished}
        await self._tell_plan(plan)
        self.moved += len(wished)
        self.plan = plan

    async def _tell_plan(self, plan: Mapping[str, str]) -> None:
        """Have the router serve applications from there; returns when it does. Another one that
        leads meanwhile is told as well."""
        home = {name: int(rank) for name, rank in plan.items()}
        going: Sequence[str] = ()
        away = list(home)
        while away:
            if not set(away) <= set(going):
                await self.router.place(home)
            told = (await self.router.snapshot())["placement"]
            going = told["on_their_way"]
            away = [name for name, rank in home.items() if told["applications"][name] != rank]
            if away:
                await asyncio.sleep(ARRIVE_S)

    def _problem(self, rates: Mapping[str, float], current: Mapping[str, str]) -> Problem:
        spec = self.config.epochs
        assert spec is not None
        memory_mb = self.config.backend.memory_mb
        room = ROOMY_BYTES if memory_mb is None else int(memory_mb * 2**20)
        return Problem(
            models=tuple(
                self._model(each, name, rates)
                for each, name in zip(self.config.applications, self.names, strict=True)
            ),
            sub_clusters=tuple(
                SubCluster(str(rank), spec.rate_max_rps, room) for rank in range(spec.sub_clusters)
            ),
            memory_weight=spec.memory_weight,
            current=current,
            load_cost_max=spec.load_cost_max_ms,
        )

    def _model(
        self, application: ApplicationConfig, name: str, rates: Mapping[str, float]
    ) -> PlacedModel:
        """An application with all its variants: they live together."""
        held = [self.profiles[variant.name] for variant in application.variants]
        sizes = [variant.batch_size_max for variant in application.variants]
        dynamic = [
            each.dynamic_bytes_at(min(size, each.batch_size_max or size))
            for each, size in zip(held, sizes, strict=True)
        ]
        return PlacedModel(
            name,
            rates.get(name, 1.0),
            sum(each.static_bytes for each in held),
            max(dynamic),
            sum(each.load_ns for each in held) / 1e6 or 1.0,
        )

    async def _solve(
        self, rates: Mapping[str, float], current: Mapping[str, str]
    ) -> dict[str, str]:
        spec = self.config.epochs
        assert spec is not None
        return await self.cluster.solve(self._problem(rates, current), spec.solve_s)

    # The last plan

    def _plan_file(self) -> Path | None:
        spec = self.config.epochs
        return Path(spec.plan_file) if spec is not None and spec.plan_file else None

    def _kept_plan(self) -> dict[str, str]:
        """The plan of the last run, where it still names just what is served."""
        path = self._plan_file()
        try:
            kept = {} if path is None else json.loads(path.read_text(encoding="utf-8"))["plan"]
            home = {name: place for place, names in kept.items() for name in names}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            LOG.warning("the kept placement is not read", extra=fields(path=path, reason=error))
            return {}
        assert self.config.epochs is not None
        places = {str(rank) for rank in range(self.config.epochs.sub_clusters)}
        fits = set(home) == set(self.names)
        return home if fits and set(home.values()) <= places else {}

    def _keep_plan(self) -> None:
        path = self._plan_file()
        if path is not None:
            placed: dict[str, list[str]] = {}
            for name, home in sorted(self.plan.items()):
                placed.setdefault(home, []).append(name)
            draft = path.with_name(path.name + ".new")
            draft.write_text(json.dumps({"plan": placed, "at_s": time.time()}), encoding="utf-8")
            draft.replace(path)
