"""The Serve application: control plane, frontends and backends.

`serve run fermata.deployments.app:build config=FILE` runs it.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from fermata.autoscaler.serve_policy import RelayTarget
from fermata.deployments.config.backend_groups import are_apart, own_config
from fermata.deployments.config.deployment import DeploymentConfig, load_config, read_config
from fermata.deployments.config.policies import PolicyDocument, policies, version_of, with_policies
from fermata.deployments.config.processes.frontend_options import frontend_options
from fermata.deployments.config.processes.token_reader import TokenReader, Tokens
from fermata.deployments.config.resolve import CONTROL_CPUS, gpus_each, known_profiles, variants
from fermata.deployments.config.served.looks import peeks
from fermata.deployments.config.served.picture_places import with_decoding
from fermata.deployments.config.served.registry import registry
from fermata.deployments.config.sub_clusters import (
    backend_counts,
    backend_limits,
    groups_in_sub_clusters,
)
from fermata.deployments.control.access import ControlGate
from fermata.deployments.control.control_plane import SEATS, ControlPlaneCore
from fermata.deployments.control.health import check_start, step_left
from fermata.deployments.control.page.page import page
from fermata.deployments.control.ray_cluster import (
    BACKENDS,
    NAMESPACE,
    RayCluster,
    backends_name,
    end_surplus_routers,
    link_secret,
    log_options,
    process_number,
    router_name,
    where_others,
    where_router,
    where_standby,
)
from fermata.deployments.control.spares import SpareKeeper, start_host
from fermata.deployments.control.sub_clusters.homes import opened_at_start
from fermata.deployments.control.sub_clusters.several_routers import SeveralRouters
from fermata.deployments.frontend.process import FrontendProcess, node_name
from fermata.deployments.metrics.families import prometheus_text
from fermata.deployments.metrics.ray_exporter import FrontendExport
from fermata.foundation.denials import DeniedLogins
from fermata.foundation.errors import NoAnswerError
from fermata.foundation.logs import start_logs
from fermata.profiles.profile import Profile

HEALTH_S = 2.0
"""Interval of Serve's checks of a process' health; after three failures it is replaced. Only a new
control plane makes a router in place of one that was ended by hand."""
BACKEND_HEALTH_S = 0.5
"""The same for backends. Serve learns of a dead one by its next check alone, and replaces it."""


def _number(config: DeploymentConfig) -> int:
    """The number of this frontend or backend."""
    context = serve.get_replica_context()
    return process_number(config, context.deployment, context.replica_tag)


def _deployment() -> str:
    """Name of this application among all Ray clusters; a new version of it has the same."""
    cluster: Any = ray.get_runtime_context()
    return f"{cluster.gcs_address}/{serve.get_replica_context().app_name}"


@serve.deployment(num_replicas=1, max_ongoing_requests=100, health_check_period_s=HEALTH_S)
class ControlPlane:
    """Connects a `ControlPlaneCore` with Serve and with operators."""

    def __init__(self, config: dict[str, Any], backends: list[Any], frontends: Any) -> None:
        given = read_config(config)
        start_logs("control", log_options(given))
        tokens = given.control.tokens() if given.control.is_given else ()
        self.auth = ControlGate(tokens, given.control.reading == "open")
        self.denied = DeniedLogins()
        reader = TokenReader({"the control plane": given.control} if given.control.is_given else {})
        self.renewal = asyncio.get_running_loop().create_task(reader.keep(self._renew))
        self.backends = backends
        self.given = given
        self.control = self._control()
        self.surplus = asyncio.get_running_loop().create_task(end_surplus_routers(given))

    def _control(self) -> ControlPlaneCore | SeveralRouters:
        given, backends = self.given, self.backends
        if not given.sub_clusters.several:
            return ControlPlaneCore(given, RayCluster(given, backends))
        # A deployment of backends for each sub-cluster.
        return SeveralRouters(
            given, lambda config, number: RayCluster(config, self._telling(number), number)
        )

    def _telling(self, number: int) -> list[Any]:
        """Backends that tell what a sub-cluster's are like, one deployment of each group there; one
        that is closed has none."""
        given = self.given
        if given.sub_clusters.count == "auto":
            return self.backends[:1]
        return self.backends[number :: given.sub_clusters.routers]

    async def reconfigure(self, wanted: PolicyDocument) -> None:
        """Serve by other policies; no process is replaced."""
        self.control.set_policies(with_policies(self.given, wanted))

    def _renew(self, found: Tokens) -> None:
        for tokens in found.values():
            self.auth.renew(tokens)

    async def progress(self) -> tuple[str, str]:
        """(`loading`, current step), (`ready`, ``) or (`failed`, reason)."""
        state, reason = self.control.progress()
        if state == "loading":
            asked = self.backends if self.given.sub_clusters.count != "auto" else self.backends[:1]
            steps = [str(await each.progress.remote()) for each in asked]
            reason = step_left(steps)
        return state, reason

    async def check_health(self) -> None:
        self.control.check()

    async def __call__(self, request: HttpRequest) -> Response:
        """The page, `/frame` for it, `/metrics` for Prometheus, `/status` as JSON."""
        refusal = self.auth.refusal(request.method, request.headers.get("authorization", ""))
        if refusal is not None:
            status, message = refusal
            self.denied.note("" if request.client is None else request.client.host, message)
            # A browser asks its user for the token; scripts send it by themselves.
            return PlainTextResponse(
                f"{message}\n", status, {"WWW-Authenticate": 'Basic realm="fermata"'}
            )
        state, reason = self.control.progress()
        if state == "failed":
            return PlainTextResponse(f"{reason}\n", status_code=503)
        path = request.url.path.rpartition("/")[2]
        if path == "":
            return HTMLResponse(page())
        if path == "frame":
            return Response(self.control.frame(), media_type="application/json")
        if path in ("metrics", "status"):
            try:
                told = await self.control.status()
            except NoAnswerError as error:
                return PlainTextResponse(f"{error}\n", status_code=503)
            if path == "status":
                return JSONResponse(told.to_json())
            return PlainTextResponse(prometheus_text(told))
        return PlainTextResponse("fermata: see /, /status and /metrics\n", status_code=404)

    async def __del__(self) -> None:
        self.renewal.cancel()
        await self.control.end()


@serve.deployment(health_check_period_s=BACKEND_HEALTH_S)
class Backend:
    """One accelerator, or an emulated one, and its spare."""

    def __init__(self, config: dict[str, Any], sub_cluster: int = 0) -> None:
        self.config = own_config(read_config(config), sub_cluster)
        tag = serve.get_replica_context().replica_tag
        self.number = process_number(self.config, BACKENDS, tag)
        start_logs(f"backend-{self.number}", log_options(self.config))
        node = node_name()
        self.host = start_host(self.config, self.number, node, sub_cluster=sub_cluster)
        self.spare = SpareKeeper(self.config, self.host, sub_cluster)

    async def progress(self) -> str:
        """The current step of its start."""
        return self.host.step

    async def profiles(self) -> tuple[str, dict[str, Profile]]:
        """Its accelerator type, and the run times of every variant once all are loaded."""
        return await self.host.profiles()

    async def device_bytes(self) -> int:
        """Memory of its device; 0 where it has none of its own."""
        return await self.host.device_bytes()

    async def check_health(self) -> None:
        check_start(self.host.starting)
        if self.host.is_up:
            self.host.process.check()

    async def __del__(self) -> None:
        await self.spare.end()
        await self.host.leave()


@serve.deployment(health_check_period_s=HEALTH_S)
class Frontend:
    """Serves clients; one of several processes that share the ports."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = read_config(config)
        self.number = _number(self.config)
        start_logs(f"frontend-{self.number}", log_options(self.config))
        self.starting = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        config = self.config
        options = frontend_options(config, self.number, link_secret(config), _deployment())
        resolve = where_router(config)
        peek_models = await asyncio.to_thread(peeks, config)
        export = FrontendExport(options.number)
        self.process = FrontendProcess(
            options,
            registry(config),
            resolve,
            peeks=peek_models,
            export=export,
            tokens=TokenReader({each.name: each for each in config.tenants}),
            standby=where_standby(config),
            others=where_others(config),
        )
        await self.process.start()

    async def check_health(self) -> None:
        # Serve asks before it takes a frontend for started. One that cannot listen never is, and
        # Serve's status says why; one that has lost a port is replaced.
        await asyncio.shield(self.starting)
        self.process.check()

    async def __del__(self) -> None:
        if self.starting.done() and self.starting.exception() is None:
            await self.process.stop()


def gpus_in_cluster() -> float:
    """GPUs of the cluster; 0 before there is one, as in `serve build`."""
    return in_cluster("GPU")


def in_cluster(resource: str) -> float:
    """How much of this the cluster has; 0 before there is one."""
    # Some of Ray's functions have no types.
    cluster: Any = ray
    return float(cluster.cluster_resources().get(resource, 0)) if cluster.is_initialized() else 0


def _opened(config: DeploymentConfig) -> int:
    """Sub-clusters to start backends for; the control plane counts anew with measured models."""
    known = known_profiles(config)
    measured = all(variant.name in known for _, variant in variants(config))
    return opened_at_start(config, known) if measured else 1


def _scaling_options(config: DeploymentConfig, sub_cluster: int) -> dict[str, Any]:
    """Serve's options for a fixed number of backends, or for one that our autoscaler sets."""
    spec = config.autoscaler
    scaled = spec is not None and not spec.dry_run
    is_auto = config.sub_clusters.count == "auto"
    counts = backend_counts(config, _opened(config) if is_auto else None)
    if not scaled and not is_auto:
        return {"num_replicas": counts[sub_cluster]}
    least, most = 1, config.backend.count
    if spec is not None and scaled:
        least, most = backend_limits(config)[sub_cluster]
    if is_auto and sub_cluster:
        # Any but the first may be closed, and then has none.
        least = 0
    policy: Any = AutoscalingPolicy
    seats = range(SEATS if config.router.standby else 1)
    names = [router_name(config, seat, sub_cluster) for seat in seats]
    relay = policy(
        policy_function=RelayTarget,
        policy_kwargs={"routers": names, "namespace": NAMESPACE},
    )
    # Serve adds no delays: the windows and the cool-down of our autoscaler are enough.
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=least,
            max_replicas=most,
            initial_replicas=counts[sub_cluster],
            upscale_delay_s=0,
            downscale_delay_s=0,
            policy=relay,
        )
    }


def _backends(
    config: DeploymentConfig,
    number: int,
    version: Mapping[str, str | bool],
    gpus: float,
    sub_cluster: int = 0,
) -> Any:
    """The deployment of one group of backends, in one sub-cluster; the cluster has `gpus`."""
    backend: Any = Backend
    given = own_config(config, sub_cluster).backend
    return backend.options(
        **version,
        **_scaling_options(config, sub_cluster),
        name=backends_name(number),
        ray_actor_options={
            "num_cpus": given.cpus,
            "num_gpus": gpus_each(given, gpus),
            "resources": given.resources,
        },
    ).bind(config.model_dump(), sub_cluster)


def _all_backends(
    config: DeploymentConfig, version: Mapping[str, str | bool], gpus: float
) -> list[Any]:
    """Deployments of backends: one for each group of each sub-cluster."""
    named = enumerate(groups_in_sub_clusters(config), 1)
    # A group that is a sub-cluster has limits of its own, which the whole file tells.
    return [
        _backends(config if are_apart(config) else each, at, version, gpus, number)
        for at, (each, number) in named
    ]


def build(arguments: dict[str, Any]) -> serve.Application:
    """The Serve application; `config` is a YAML file's path or the configuration itself."""
    given = arguments.get("config", str(Path(__file__).with_name("local.yaml")))
    config = load_config(given) if isinstance(given, str) else read_config(given)
    config.check_backends()
    return application_of(config, gpus_in_cluster())


def application_of(given: DeploymentConfig, gpus: float) -> serve.Application:
    """The Serve application of a deployment in a cluster of so many GPUs."""
    # Settled here, once: processes that asked by themselves could come to different answers.
    config = with_decoding(given, gpus)
    plain = config.model_dump()
    # Serve keeps the processes of a version: where policies alone differ, it says so to them.
    version: Mapping[str, str | bool] = {"version": version_of(config), "_internal": True}
    # The types of `serve.deployment` do not describe the class that it returns.
    frontend: Any = Frontend
    control: Any = ControlPlane
    backends = _all_backends(config, version, gpus)
    frontends = frontend.options(
        **version,
        num_replicas=config.frontend.processes,
        max_replicas_per_node=config.frontend.per_node,
        ray_actor_options={
            "num_cpus": config.frontend.cpus,
            "resources": config.frontend.resources,
        },
    ).bind(plain)
    application: serve.Application = control.options(
        **version,
        user_config=policies(config),
        ray_actor_options={"num_cpus": CONTROL_CPUS, "resources": config.control.resources},
    ).bind(plain, backends, frontends)
    return application
