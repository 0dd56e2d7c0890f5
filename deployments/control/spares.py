"""Spares: actors that wait beside the replicas of backends, and take over from them.

A replica of Serve's owns a seat on its node. It starts a spare there, and whichever of the two
holds the seat's lock serves. Either is replaced when it dies: Serve starts replicas, and replicas
start spares.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fermata.deployments.backend.host import BackendHost, HostOptions
from fermata.deployments.backend.process import UnfitError
from fermata.deployments.backend.seats import Holder, Seat, claim_seat, seats_folder
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.policies import version_of
from fermata.deployments.config.processes.process_options import link_options, store_options
from fermata.deployments.config.resolve import known_profiles, measured_costs
from fermata.deployments.config.served.looks import placed_looks
from fermata.deployments.config.sub_clusters import loads_by_router
from fermata.deployments.control.ray_cluster import (
    BACKENDS,
    NAMESPACE,
    link_secret,
    log_options,
    process_number,
    where_router,
    where_standby,
)
from fermata.deployments.metrics.ray_exporter import BackendExport
from fermata.foundation.logs import LOG, fields, start_logs
from fermata.profiles.profile import Profile

LOOK_S = 1.0
CHECK_S = 10.0
"""A spare that does not answer a check within that has missed it."""
MISSES_MAX = 3
"""Checks in a row that a spare may miss before it is ended, as Serve does with replicas."""
RETRY_S, RETRY_S_MAX = 10.0, 600.0
"""After a spare that could not be started; each further time is twice as long."""
ALONE_S = 120.0
"""A spare whose seat no replica has owned for so long ends: it is not wanted any more, or Serve
has put its replica elsewhere."""
END_S = 15.0
"""For a spare to finish its batches when its replica ends."""
INHERITED = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Ray sets these by what a process has asked for, and a spare asks for nothing."""


def start_host(
    config: DeploymentConfig,
    number: int,
    node: str,
    seat: Seat | None = None,
    profiles: Mapping[str, Profile] | None = None,
    actor: str = "",
    sub_cluster: int = 0,
    kind: str = "",
) -> BackendHost:
    """Start a backend; on this seat, or on one that it finds where it wants one. A spare that is to
    wait in host memory is told the `kind` of its device."""
    options = partial(_host_options, config, number, node, seat, profiles, actor, sub_cluster, kind)
    return BackendHost(options, BackendExport(number))


def _host_options(
    config: DeploymentConfig,
    number: int,
    node: str,
    seat: Seat | None,
    profiles: Mapping[str, Profile] | None,
    actor: str,
    sub_cluster: int,
    kind: str,
) -> HostOptions:
    store = store_options(config)

    def find_seat(device: str) -> Seat | None:
        if seat is not None or not may_have_spare(config, device):
            return seat
        return claim_seat(seats_folder(), seat_name(config, sub_cluster))

    return HostOptions(
        number=number,
        store=replace(store, kind=kind) if kind else store,
        resolve=where_router(config, sub_cluster),
        standby=where_standby(config, sub_cluster),
        costs_of=lambda found: measured_costs(config, found),
        profiles=known_profiles(config) if profiles is None else profiles,
        # With sub-clusters the router decides which backend holds which model.
        placed=config.epochs is not None or loads_by_router(config),
        links=link_options(config, link_secret(config)),
        node=node,
        actor=actor,
        find_seat=find_seat,
        on_host=bool(kind),
        ask=_ask,
        looks=lambda: placed_looks(config),
    )


async def _ask(actor: str) -> tuple[str, dict[str, Profile]]:
    """The accelerator type and the run times of a spare that serves."""
    spare: Any = ray.get_actor(actor, NAMESPACE)
    kind, profiles = await spare.profiles.remote()
    return kind, profiles


def may_have_spare(config: DeploymentConfig, device: str) -> bool:
    """Whether its backends have spares; where nothing is said, a GPU's memory decides later."""
    given = config.backend
    if given.spare == "auto":
        return device == "cuda" and not given.swap
    return given.spare is not False


def seat_name(config: DeploymentConfig, sub_cluster: int = 0) -> str:
    """The same for all backends on one accelerator that are of one sub-cluster and version."""
    context: Any = ray.get_runtime_context()
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    of = (config.name, sub_cluster, version_of(config))
    parts = (context.gcs_address, context.get_node_id(), *of, devices)
    return hashlib.blake2s(repr(parts).encode(), digest_size=8).hexdigest()


class SpareBackend:
    """The actor of a spare; it outlives its replica, and ends where none comes in its place."""

    def __init__(
        self,
        config: DeploymentConfig,
        node: str,
        seat: str,
        name: str,
        profiles: Mapping[str, Profile],
        environment: Mapping[str, str],
        sub_cluster: int = 0,
        kind: str = "",
    ) -> None:
        """`kind` is that of its device, where it is to wait in host memory."""
        # Before anything looks for a GPU.
        os.environ.update(environment)
        number = process_number(config, BACKENDS, name)
        start_logs(f"backend-{number}", log_options(config))
        self.seat = Seat(Path(seat))
        self.host = start_host(config, number, node, self.seat, profiles, name, sub_cluster, kind)
        self.watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        owned_at_s = time.monotonic()
        while time.monotonic() - owned_at_s < ALONE_S:
            await asyncio.sleep(LOOK_S)
            if self.seat.owner.is_held():
                owned_at_s = time.monotonic()
            self.host.follow()
            if self.host.is_up:
                try:
                    self.host.process.check()
                except UnfitError as error:
                    LOG.error("spare unfit", extra=fields(reason=str(error)))
                    os._exit(1)
        LOG.warning("spare ends, since no replica has come", extra=fields(waited_s=ALONE_S))
        await self.host.leave()
        os._exit(0)

    async def check(self) -> bool:
        """Whether it serves or could at once; raises what its start has died of."""
        self.host.check()
        return self.host.is_up

    async def profiles(self) -> tuple[str, dict[str, Profile]]:
        """Its accelerator type, and the run times of every variant."""
        return await self.host.profiles()

    async def end(self) -> None:
        """Take nothing more, and finish what is here."""
        self.watching.cancel()
        await self.host.leave()


class SpareKeeper:
    """The replica's side: starts its spare, checks it, and ends it."""

    def __init__(self, config: DeploymentConfig, host: BackendHost, sub_cluster: int = 0) -> None:
        self.config = config
        self.sub_cluster = sub_cluster
        self.host = host
        self.actor: Any = None
        self.name = ""
        """Name of the spare's actor."""
        self.ready = False
        """The spare could take over at once, or has."""
        self.misses = 0
        self.count = 0
        self.retry_s = RETRY_S
        self.next_at_s = 0.0
        given = config.backend.spare
        self.wanted = None if given == "auto" else given
        """As in the configuration; None until it is known whether there is room."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        first = self._find()
        if self.actor is not None:
            await self._check()
        elif first is None and self._wants() and time.monotonic() >= self.next_at_s:
            self._start()
        if self.ready and self.host.is_up:
            self._end_if_unfit()

    def _find(self) -> Holder | None:
        """The process that serves in place of this one: its spare from now on."""
        first = self.host.follow()
        if first is not None and first.actor != self.name:
            self.name = first.actor
            # There was room for two.
            self.wanted = "host" if first.on_host else True
            with suppress(ValueError):
                self.actor = ray.get_actor(first.actor, NAMESPACE)
        return first

    def _wants(self) -> bool:
        host = self.host
        if not host.is_up or host.seat is None:
            return False
        if self.wanted is None:
            self.wanted = host.store.has_room_for_spare(host.options.placed)
            if not self.wanted and host.store.has_room_on_host():
                LOG.info("the spare waits in host memory: the device has no room for two")
                self.wanted = "host"
            elif not self.wanted:
                LOG.info("no spare: neither device nor host has room for the models twice")
        return self.wanted is not False

    def _end_if_unfit(self) -> None:
        """End this process where it should be replaced: the spare takes over at once, and Serve
        would look some times more."""
        try:
            self.host.process.check()
        except UnfitError as error:
            LOG.error("backend unfit", extra=fields(reason=str(error)))
            os._exit(1)

    def _start(self) -> None:
        host, context = self.host, ray.get_runtime_context()
        assert host.seat is not None, "a spare needs a seat"
        self.count += 1
        self.name = f"{self.config.name}-spare-{host.options.number}-{self.count}"
        here = NodeAffinitySchedulingStrategy(context.get_node_id(), soft=False)
        environment = {key: os.environ[key] for key in INHERITED if key in os.environ}
        profiles = host.loading.result().profiles
        spare: Any = ray.remote(SpareBackend)
        options = spare.options(
            name=self.name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            scheduling_strategy=here,
        )
        node, seat = host.options.node, str(host.seat.path)
        kind = host.store.kind if self.wanted == "host" else ""
        self.actor = options.remote(
            self.config, node, seat, self.name, profiles, environment, self.sub_cluster, kind
        )
        self.ready, self.misses = False, 0

    async def _check(self) -> None:
        try:
            self.ready = await asyncio.wait_for(self.actor.check.remote(), CHECK_S)
            self.misses = 0
            if self.ready:
                self.retry_s = RETRY_S
        except (TimeoutError, ray.exceptions.ActorUnavailableError):
            self.misses += 1
            if self.misses >= MISSES_MAX:
                self._lose("it does not answer")
        except ray.exceptions.RayError as error:
            self._lose(str(error).strip().splitlines()[-1])

    def _lose(self, reason: str) -> None:
        """End what is left of a spare; where it served, this process takes over."""
        LOG.warning("spare lost", extra=fields(spare=self.name, reason=reason))
        if not self.ready:
            self.next_at_s = time.monotonic() + self.retry_s
            self.retry_s = min(2 * self.retry_s, RETRY_S_MAX)
        ray.kill(self.actor)
        self.actor, self.ready = None, False

    async def end(self) -> None:
        """End the spare, also one that serves; before this process ends, which it would replace."""
        self.task.cancel()
        self.host.ending = True
        first = self._find()
        if self.actor is not None:
            if first is not None or self.ready:
                with suppress(TimeoutError, ray.exceptions.RayError):
                    await asyncio.wait_for(self.actor.end.remote(), END_S)
            ray.kill(self.actor)
