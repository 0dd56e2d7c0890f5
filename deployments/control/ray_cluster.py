"""Ray and Serve as the control plane's cluster."""

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.experimental import internal_kv
from ray.serve.schema import ApplicationStatusOverview

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.policies import mark_of
from fermata.deployments.config.processes.process_options import link_options
from fermata.deployments.control.cluster import Router
from fermata.deployments.control.device_memory import least
from fermata.deployments.control.solving import solve_placement
from fermata.foundation.errors import GoneError, NoAnswerError
from fermata.foundation.logs import LOG, LogOptions, fields
from fermata.partitioner.plan import Plan, Problem
from fermata.profiles.profile import Profile
from fermata.router.assembly import RouterConfig
from fermata.router.leadership.actor import (
    Called,
    create_router,
    environment_of,
    find_actor,
    find_router,
    in_our_words,
    standby_name,
)
from fermata.router.leadership.process_ids import claim_process_id
from fermata.router.links.transport import Resolve
from fermata.router.live.own_speed import carried_rps

NAMESPACE = "fermata"
GENERATION = 1
"""Generation of routers: raised when a later one must win over an earlier whatever their clocks
say."""
GOES_ON = ("DEPLOYING", "RUNNING", "UNHEALTHY")
"""States of an application in which Serve replaces a replica that ends."""
STATUS_S = 2.0
TOLD_S = 10.0
"""Backends that take longer to tell of their device may not be there."""
TRIAL_S = 10.0
"""Time for a process to come up and to try how much a router carries."""
SECRET_BYTES = 32
BACKENDS = "Backend"
"""Name of their deployment: that of its class. Those of groups have a number behind it."""


def backends_name(number: int) -> str:
    """The name of the deployment of a group, or of a sub-cluster; they count from 1."""
    return BACKENDS if number == 1 else f"{BACKENDS}-{number}"


def log_options(config: DeploymentConfig) -> LogOptions:
    given = config.logs
    return LogOptions(given.level, given.folder, int(given.file_mb * 2**20))


def router_name(config: DeploymentConfig, seat: int = 0, sub_cluster: int = 0) -> str:
    """The name of a router's actor; those of further sub-clusters have a number in it."""
    name = f"{config.name}-router" + (f"-{sub_cluster + 1}" if sub_cluster else "")
    return standby_name(name) if seat else name


def where_router(config: DeploymentConfig, sub_cluster: int = 0) -> Resolve:
    """Where the first router of a sub-cluster is."""
    return find_router(router_name(config, 0, sub_cluster), NAMESPACE)


def where_standby(config: DeploymentConfig, sub_cluster: int = 0) -> Resolve | None:
    """Where the second router of a sub-cluster is, if there is to be one."""
    if not config.router.standby:
        return None
    return find_router(router_name(config, 1, sub_cluster), NAMESPACE)


def where_others(config: DeploymentConfig) -> list[list[Resolve]]:
    """Where the routers of all sub-clusters but the first one are."""
    found: list[list[Resolve]] = []
    for number in range(1, config.sub_clusters.routers):
        places = where_router(config, number), where_standby(config, number)
        found.append([each for each in places if each is not None])
    return found


def link_secret(config: DeploymentConfig) -> bytes:
    """The deployment's secret, by which its processes know one another on links.

    The cluster keeps it, so that restarts of any process do not change it. Whichever process comes
    first makes it: frontends and backends may start before the control plane does.
    """
    key = f"fermata-link-secret-{NAMESPACE}-{config.name}".encode()
    internal_kv._internal_kv_put(key, secrets.token_bytes(SECRET_BYTES), overwrite=False)
    found = internal_kv._internal_kv_get(key)
    assert len(found) == SECRET_BYTES, "the cluster does not keep the deployment's secret"
    return bytes(found)


def process_number(config: DeploymentConfig, deployment: str, name: str) -> int:
    """The number of a frontend or backend, which the cluster keeps for it for good.

    Other processes may remember a number for long, so no second process may get it.
    """

    def claim(number: int) -> str:
        key = f"fermata-number-{config.name}-{deployment}-{number}".encode()
        internal_kv._internal_kv_put(key, name.encode(), overwrite=False)
        return str(internal_kv._internal_kv_get(key), "utf-8")

    return claim_process_id(name, claim)


class RayCluster:
    """A `Cluster`, seen from a Serve replica."""

    def __init__(
        self, config: DeploymentConfig, backends: Sequence[Any], sub_cluster: int = 0
    ) -> None:
        """`backends` are the handles of their deployments."""
        self.config = config
        self.backends = backends
        self.sub_cluster = sub_cluster
        context: Any = ray.get_runtime_context()
        code = context.get_runtime_env_string()
        self.mark = hashlib.blake2s(f"{mark_of(config)}{code}".encode()).hexdigest()

    async def profiles(self) -> tuple[str, Mapping[str, Profile]]:
        # Backends of other kinds bring their own, each when it links.
        kind, found = await self.backends[0].profiles.remote()
        return kind, found

    async def device_bytes(self) -> int:
        # Backends of one deployment are alike: one of each tells.
        found = await asyncio.gather(*(self._bytes_of(each) for each in self.backends))
        return least(found)

    async def _bytes_of(self, backends: Any) -> int:
        """Ask one of them; 0 where there is none to ask."""
        try:
            return int(await asyncio.wait_for(backends.device_bytes.remote(), TOLD_S))
        # Serve and the backend may raise anything. Plans do without.
        except Exception as error:
            LOG.warning("a device's memory is not known", extra=fields(reason=repr(error)))
            return 0

    async def find(self, seat: int) -> Router | None:
        try:
            name = router_name(self.config, seat, self.sub_cluster)
            return await find_actor(name, NAMESPACE)
        except GoneError:
            return None

    def create(self, seat: int, plan: RouterConfig) -> Router:
        config = self.config
        other = router_name(config, 1 - seat, self.sub_cluster)
        try:
            return create_router(
                router_name(config, seat, self.sub_cluster),
                plan,
                GENERATION,
                namespace=NAMESPACE,
                host=config.links.host,
                cpus=config.router.cpus,
                resources=config.router.resources,
                mark=self.mark,
                options=link_options(config, link_secret(config)),
                logs=log_options(config),
                other=other if config.router.standby else "",
                second=seat > 0,
                compiled=config.router.compiled,
            )
        except ValueError as error:
            # The name is still taken: whoever has it is on its way out, or was not seen.
            raise NoAnswerError(str(error)) from None

    def end(self, router: Router) -> None:
        assert isinstance(router, Called)
        ray.kill(router.actor)

    async def solve(self, problem: Problem, seconds: float) -> Plan:
        # The process ends with it: nothing else is to run at its priority.
        task = ray.remote(num_cpus=0, max_calls=1)(solve_placement)
        try:
            found: Plan = await task.remote(problem, seconds)
        except ray.exceptions.RayError as error:
            raise in_our_words(error) from None
        return found

    async def router_speed(self) -> float | None:
        environment = environment_of(self.config.router.compiled)
        task = ray.remote(carried_rps).options(num_cpus=0, runtime_env=environment)
        try:
            return float(await asyncio.wait_for(task.remote(), TRIAL_S))
        except (TimeoutError, ray.exceptions.RayError) as error:
            LOG.info("no trial of a router's speed", extra=fields(reason=error))
            return None

    async def backends_there(self) -> int:
        return sum((await self._replicas()).values())

    async def backends_here(self) -> int:
        return (await self._replicas()).get(backends_name(self.sub_cluster + 1), 0)

    async def _replicas(self) -> dict[str, int]:
        """Replicas of each deployment of backends."""
        told = await self._status()
        if told is None:
            raise NoAnswerError("Serve does not tell how many backends there are")
        return {
            name: sum(
                count for state, count in deployment.replica_states.items() if state != "STOPPING"
            )
            for name, deployment in told.deployments.items()
            if name.startswith(BACKENDS)
        }

    async def is_followed(self) -> bool:
        told = await self._status()
        return told is not None and told.status in GOES_ON

    async def _status(self) -> ApplicationStatusOverview | None:
        """How this application is; None where Serve itself ends, or this is none any more."""
        try:
            told = await asyncio.wait_for(asyncio.to_thread(serve.status), STATUS_S)
            return told.applications.get(serve.get_replica_context().app_name)
        except (
            TimeoutError,
            RuntimeError,
            ray.exceptions.RayError,
            serve.exceptions.RayServeException,
        ):
            return None


async def end_surplus_routers(config: DeploymentConfig) -> None:
    """End routers of sub-clusters that an earlier configuration had, and this one has not."""
    number, found = config.sub_clusters.routers, True
    while found:
        found = False
        for seat in (1, 0):
            with suppress(NoAnswerError):
                router = await find_actor(router_name(config, seat, number), NAMESPACE)
                ray.kill(router.actor)
                found = True
        number += 1
