"""The Serve application: control plane, frontends and backends.

`serve run fermata.deployments.app:build config=FILE` runs it.
"""

import asyncio
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.experimental import internal_kv
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from fermata.autoscaler.serve_policy import RelayTarget
from fermata.deployments.backend.execution.executor import tune
from fermata.deployments.backend.gpu_meter import find_gpu
from fermata.deployments.backend.meter import BackendMeter
from fermata.deployments.backend.model_store import ModelStore, StoredModel
from fermata.deployments.backend.process import HUNG_NS, BackendProcess, BackendSettings
from fermata.deployments.config.backend_options import store_options
from fermata.deployments.config.deployment import DeploymentConfig, load_config, read_config
from fermata.deployments.config.frontend_options import frontend_options
from fermata.deployments.config.link_options import link_options
from fermata.deployments.config.resolve import (
    gpus_each,
    known_profiles,
    measured_costs,
    peeks,
    registry,
)
from fermata.deployments.config.token_reader import TokenReader, Tokens
from fermata.deployments.control.access import ControlGate
from fermata.deployments.control.control_plane import SEATS, ControlPlaneCore
from fermata.deployments.control.health import check_start
from fermata.deployments.control.ray_cluster import (
    NAMESPACE,
    RayCluster,
    link_secret,
    log_options,
    router_name,
    where_router,
    where_standby,
)
from fermata.deployments.frontend.process import FrontendProcess, node_name
from fermata.deployments.metrics.families import prometheus_text
from fermata.deployments.metrics.ray_exporter import BackendExport, FrontendExport
from fermata.deployments.page import page
from fermata.foundation.errors import NoAnswerError
from fermata.foundation.logs import start_logs
from fermata.foundation.units import seconds
from fermata.profiles.profile import Profile
from fermata.router.leadership.process_ids import claim_process_id

HEALTH_S = 2.0
"""Between two questions of Serve for the health of a process, which it replaces after three bad
answers. Only the next control plane makes a router in place of one that somebody has ended."""


def _number(config: DeploymentConfig) -> int:
    """Of this frontend or backend. The cluster remembers whose each is, for good: what a process
    of long ago has left in others' memory must not be taken for another's."""
    context = serve.get_replica_context()
    name = context.replica_tag

    def claim(number: int) -> str:
        key = f"fermata-number-{config.name}-{context.deployment}-{number}".encode()
        internal_kv._internal_kv_put(key, name.encode(), overwrite=False)
        return str(internal_kv._internal_kv_get(key), "utf-8")

    return claim_process_id(name, claim)


def _deployment() -> str:
    """Name of this application among all Ray clusters; a new version of it has the same."""
    cluster: Any = ray.get_runtime_context()
    return f"{cluster.gcs_address}/{serve.get_replica_context().app_name}"


@serve.deployment(num_replicas=1, max_ongoing_requests=100, health_check_period_s=HEALTH_S)
class ControlPlane:
    """Shows a `ControlPlaneCore` to Serve and to operators."""

    def __init__(self, config: dict[str, Any], backends: Any, frontends: Any) -> None:
        given = read_config(config)
        start_logs("control", log_options(given))
        tokens = given.control.tokens() if given.control.is_given else ()
        self.gate = ControlGate(tokens, given.control.reading == "open")
        reader = TokenReader({"the control plane": given.control} if given.control.is_given else {})
        self.renewing = asyncio.get_running_loop().create_task(reader.keep(self._renew))
        self.backends = backends
        self.control = ControlPlaneCore(given, RayCluster(given, backends))

    def _renew(self, found: Tokens) -> None:
        for tokens in found.values():
            self.gate.renew(tokens)

    async def progress(self) -> tuple[str, str]:
        """(`loading`, at what), (`ready`, ``) or (`failed`, why)."""
        state, reason = self.control.progress()
        if state == "loading":
            reason = str(await self.backends.progress.remote())
        return state, reason

    async def check_health(self) -> None:
        self.control.check()

    async def __call__(self, request: HttpRequest) -> Response:
        """The page, `/frame` for it, `/metrics` for Prometheus, `/status` as JSON."""
        refusal = self.gate.refusal(request.method, request.headers.get("authorization", ""))
        if refusal is not None:
            status, said = refusal
            # Browsers ask their user then; scripts send the token by themselves.
            return PlainTextResponse(
                f"{said}\n", status, {"WWW-Authenticate": 'Basic realm="fermata"'}
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
        self.renewing.cancel()
        await self.control.end()


@serve.deployment
class Backend:
    """One accelerator, or an emulated one."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = read_config(config)
        self.number = _number(self.config)
        start_logs(f"backend-{self.number}", log_options(self.config))
        self.at = "starting"
        loop = asyncio.get_running_loop()
        self.loading = loop.create_task(self._load())
        self.starting = loop.create_task(self._start())

    async def _load(self) -> StoredModel:
        """Every model, warm, with its run times: those of a GPU are measured where it is held."""
        self.stock = ModelStore(store_options(self.config))
        found = StoredModel({}, known_profiles(self.config))
        specs = self.stock.specs
        for index, name in enumerate(specs):
            count = f"({index + 1} of {len(specs)})"
            # With sub-clusters the router says what each has to hold.
            later = name in self.stock.options.on_demand or self.config.epochs is not None
            if later and name in found.profiles:
                continue
            self.at = f"loading {name} {count}"
            runner = await asyncio.to_thread(self.stock.load, name)
            if name not in found.profiles:
                self.at = f"measuring {name} {count}"
                found.profiles[name] = await asyncio.to_thread(self.stock.measure, name, runner)
            if later:
                runner.close()
                self.stock.give_back(name)
            else:
                found.runners[name] = runner
        self.at = "loaded"
        return found

    async def _start(self) -> None:
        tune()
        loaded = await asyncio.shield(self.loading)
        settings = BackendSettings(
            self.number,
            kind=self.stock.kind,
            costs=measured_costs(self.config, loaded.profiles),
            node=node_name(),
            links=link_options(self.config, link_secret(self.config)),
            # A model that is brought in for a batch may take minutes.
            hung_ns=seconds(600) if self.config.backend.swap else HUNG_NS,
        )
        resolve = where_router(self.config)
        stock = self.stock
        meter = BackendMeter(stock.loads, stock.held_bytes, find_gpu(stock.device))
        export = BackendExport(settings.number)
        self.process = BackendProcess(
            settings,
            loaded.runners,
            resolve,
            stock,
            meter,
            export,
            standby=where_standby(self.config),
        )
        await self.process.start()

    async def progress(self) -> str:
        """What it is at."""
        return self.at

    async def profiles(self) -> tuple[str, dict[str, Profile]]:
        """Its kind, and run times of every variant there, once all are loaded."""
        loaded = await asyncio.shield(self.loading)
        return self.stock.kind, loaded.profiles

    async def check_health(self) -> None:
        check_start(self.starting)
        if self.starting.done():
            self.process.check()

    async def __del__(self) -> None:
        if self.starting.done() and self.starting.exception() is None:
            await self.process.drain()
            await self.process.stop()


@serve.deployment(health_check_period_s=HEALTH_S)
class Frontend:
    """Takes requests of clients; one process of several that share the ports."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = read_config(config)
        self.number = _number(self.config)
        start_logs(f"frontend-{self.number}", log_options(self.config))
        self.starting = asyncio.get_running_loop().create_task(self._start())

    async def _start(self) -> None:
        config = self.config
        options = frontend_options(config, self.number, link_secret(config), _deployment())
        resolve = where_router(config)
        looks = await asyncio.to_thread(peeks, config)
        export = FrontendExport(options.number)
        self.process = FrontendProcess(
            options,
            registry(config),
            resolve,
            peeks=looks,
            export=export,
            tokens=TokenReader({each.name: each for each in config.tenants}),
            standby=where_standby(config),
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
    """0 where no cluster is there yet, as in `serve build`."""
    # Ray's own functions are without types in part.
    cluster: Any = ray
    return float(cluster.cluster_resources().get("GPU", 0)) if cluster.is_initialized() else 0


def _how_many(config: DeploymentConfig) -> dict[str, Any]:
    """A fixed number of backends, or Serve's autoscaling told by our own autoscaler."""
    spec = config.autoscaler
    if spec is None or spec.dry_run:
        return {"num_replicas": config.backend.count}
    policy: Any = AutoscalingPolicy
    seats = range(SEATS if config.router.standby else 1)
    names = [router_name(config, seat) for seat in seats]
    relay = policy(
        policy_function=RelayTarget,
        policy_kwargs={"routers": names, "namespace": NAMESPACE},
    )
    # No delays of Serve's own: the windows and the cool-down of ours are delay enough.
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=0 if spec.to_zero else spec.minimum,
            max_replicas=spec.maximum,
            initial_replicas=config.backend.count,
            upscale_delay_s=0,
            downscale_delay_s=0,
            policy=relay,
        )
    }


def build(arguments: dict[str, Any]) -> serve.Application:
    """The Serve application; `config` is a YAML file's path or the configuration itself."""
    given = arguments.get("config", str(Path(__file__).with_name("local.yaml")))
    config = load_config(given) if isinstance(given, str) else read_config(given)
    plain = config.model_dump()
    gpus = gpus_each(config.backend, gpus_in_cluster())
    # `serve.deployment` makes something else of a class than its types say.
    backend: Any = Backend
    frontend: Any = Frontend
    control: Any = ControlPlane
    backends = backend.options(
        **_how_many(config),
        ray_actor_options={
            "num_cpus": config.backend.cpus,
            "num_gpus": gpus,
            "resources": config.backend.resources,
        },
    ).bind(plain)
    frontends = frontend.options(
        num_replicas=config.frontend.processes,
        max_replicas_per_node=config.frontend.per_node,
        ray_actor_options={
            "num_cpus": config.frontend.cpus,
            "resources": config.frontend.resources,
        },
    ).bind(plain)
    application: serve.Application = control.options(
        ray_actor_options={"num_cpus": 0.1, "resources": config.control.resources}
    ).bind(plain, backends, frontends)
    return application
