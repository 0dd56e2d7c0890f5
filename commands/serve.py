"""`fermata serve`: the whole system on this machine, until Ctrl-C."""

import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from importlib.metadata import PackageNotFoundError, distribution
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer

from fermata.commands.cluster import RAYLET, OwnCluster
from fermata.commands.files.profile_option import apply_profiles
from fermata.commands.files.scenario_server import serve_scenario
from fermata.commands.files.workload import Profiles, is_scenario
from fermata.deployments.config.backend_groups import groups_of
from fermata.deployments.config.deployment import ControlConfig, DeploymentConfig, read_config
from fermata.deployments.config.processes.endpoints import endpoints, with_free_ports
from fermata.deployments.config.resolve import check_cpus, check_gpus
from fermata.deployments.config.served.looks import peeks
from fermata.deployments.config.served.registry import registry
from fermata.foundation.errors import ConfigError
from fermata.foundation.ports import held
from fermata.foundation.sections import Mark, options
from fermata.foundation.validation import read_yaml

ConfigPath = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="Serving file, samples are in deployments/; or a scenario, on emulated GPUs.",
    ),
]
PACKAGE = Path(__file__).parents[1]
LOOK_S = 0.3
LOST = 3
"""Exit code where the cluster is gone: whoever supervises this starts it again."""
LAST_S = 45.0
"""Requests need no GCS; but without one Ray ends all its processes after a minute."""


def serve(
    config: ConfigPath = PACKAGE / "deployments/local.yaml", profiles: Profiles = None
) -> None:
    """Serve what a configuration names, on Ray Serve, until Ctrl-C.

    As `serve run fermata.deployments.app:build config=CONFIG`, with the configuration
    checked first and Ray's workers at full priority. The router is native code where `make
    compiled` has built it and the file says `router: {compiled: true}`.
    """
    loaded = load_served(config, tuple(profiles or ()))
    with ExitStack() as ports:
        if _is_all_here(loaded):
            loaded = with_free_ports(loaded)
            ports.enter_context(held(endpoints(loaded)))
        # Functions that the file names are looked for beside it, here and in all processes.
        os.environ["PYTHONPATH"] = python_path(config)
        # Missing models are reported here, in one line, and not by a process far away.
        registry(loaded)
        peeks(loaded)
        # Ray starts its workers at niceness 15 otherwise, and they would yield to everybody.
        os.environ.setdefault("RAY_worker_niceness", "0")
        _serve(loaded)


def _is_own_cluster() -> bool:
    """Whether Ray is started here, for this command alone."""
    return (os.environ.get("RAY_ADDRESS") or "local") == "local"


def _is_all_here(config: DeploymentConfig) -> bool:
    """Whether frontends and page are on this machine, so that its ports are what they need."""
    return _is_own_cluster() and not config.frontend.resources


def _serve(loaded: DeploymentConfig) -> None:
    """Start Ray and Serve, and end both when this ends."""
    try:
        import ray
        import ray.serve

        from fermata.deployments.app import build, gpus_in_cluster, in_cluster
        from fermata.deployments.config.processes.frontend_options import check_secrets
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing; pip install 'fermata[serve]'") from None
    check_secrets(loaded)
    loaded.check_backends()
    # Parts of Serve come without types.
    ray_serve: Any = ray.serve
    # It tells of every step, in words about itself; what goes wrong it still says.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    ray.init(logging_level=logging.WARNING, log_to_driver=False)
    # Ray's own handler prints where each of its threads was, and leaves processes behind.
    signal.signal(signal.SIGTERM, _interrupt)
    if _is_own_cluster():
        # A cluster of one's own gets no more of these; Ray would wait for them without a word.
        check_gpus([each.backend for each in groups_of(loaded)], gpus_in_cluster())
        check_cpus(loaded, in_cluster("CPU"))
    _check_alone(ray_serve)
    cluster = OwnCluster()
    try:
        _start_page(ray_serve, loaded.control)
        handle = _run(ray_serve, build({"config": loaded.model_dump()}), loaded.name)
        _wait_until_ready(handle)
        typer.echo(_where(loaded))
        _serve_until_lost(cluster.lost)
    finally:
        # The end is on its way, and whoever asks for it twice must not cut it short.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Replicas drain and give back what they hold before Ray ends their processes. Serve's
        # controller ends itself when asked to, and Ray prints on standard output that this failed;
        # what really goes wrong is logged, and so on standard error.
        with redirect_stdout(StringIO()):
            if not cluster.lost():
                ray_serve.shutdown()
            ray.shutdown()


def _interrupt(number: int, frame: object) -> None:
    """End as Ctrl-C does."""
    raise KeyboardInterrupt


def _start_page(ray_serve: Any, control: ControlConfig) -> None:
    """Start Serve, whose proxy has the page."""
    tls = control.tls
    files = {"ssl_certfile": tls.certificate_file, "ssl_keyfile": tls.key_file} if tls else {}
    try:
        ray_serve.start(
            http_options={"host": control.host, "port": control.port, **files},
            logging_config={"log_level": "WARNING"},
        )
    except RuntimeError as error:
        # Another process may have come first, and on another machine nobody has looked.
        last = str(error).strip().splitlines()[-1]
        raise ConfigError(f"Ray Serve does not start ({last}): set another control.port") from None


def _check_alone(ray_serve: Any) -> None:
    """Refuse a cluster whose Serve has work of others: it has ports of its own already, and would
    end with this command."""
    there = ", ".join(sorted(ray_serve.status().applications))
    if there:
        raise ConfigError(
            f"this Ray cluster serves {there} already: end that (`serve shutdown`), add to it with"
            " `serve deploy`, or give RAY_ADDRESS=local for a cluster of your own"
        )


def python_path(config: Path) -> str:
    """Return the PYTHONPATH of all processes: user code first, which lies beside the configuration.

    A checkout that is not installed comes last, so that its folders hide nobody's modules.
    """
    folders = [os.fspath(config.resolve().parent), os.environ.get("PYTHONPATH", "")]
    if not is_installed():
        folders.append(os.fspath(PACKAGE.parent))
    return os.pathsep.join(filter(None, folders))


def is_installed() -> bool:
    """Tell whether a new interpreter finds the package by itself."""
    try:
        distribution("fermata")
    except PackageNotFoundError:
        return False
    return True


def load_served(path: Path, profiles: tuple[str, ...] = ()) -> DeploymentConfig:
    """The configuration in a serving file, or that of a scenario; says what is left out."""
    data = read_yaml(path)
    if is_scenario(data):
        config = serve_scenario(path)
        emulated = config.backend.device == "emulated"
        on = "emulated GPUs, which run for the profiled times" if emulated else "backends"
        note = f"{path} is a scenario: its applications are served on {config.backend.count} {on}"
        typer.echo(f"fermata: {note}; its load and faults are left out", err=True)
        return config
    config = read_config(data, str(path), path.parent)
    for line in _left_out(config):
        typer.echo(f"fermata: {line}", err=True)
    if not profiles:
        return config
    applications = apply_profiles(config.applications, profiles)
    return config.model_copy(update={"applications": applications})


def _left_out(config: DeploymentConfig) -> list[str]:
    """Options of applications that only simulations use, one line for each application."""
    lines: list[str] = []
    for application in config.applications:
        given = [
            option.key
            for option in options(type(application))
            if Mark.SIMULATED in option.marks
            and getattr(application, option.field) != option.default
        ]
        if given:
            named = ", ".join(given)
            lines.append(f"application {application.name}: {named} are for simulations alone")
    return lines


def _serve_until_lost(lost: Callable[[], set[str]]) -> None:
    """Until Ctrl-C, or until too little is left of a cluster that nobody else would mend."""
    while not (gone := lost()):
        time.sleep(LOOK_S)
    if RAYLET not in gone:
        typer.echo(
            f"fermata: Ray's {', '.join(sorted(gone))} has ended: requests are served for"
            f" {LAST_S:g} s more, then the server stops; restart it",
            err=True,
        )
        end_s = time.monotonic() + LAST_S
        while RAYLET not in lost() and time.monotonic() < end_s:
            time.sleep(LOOK_S)
    typer.echo("fermata: the Ray cluster of this machine is lost", err=True)
    raise typer.Exit(LOST)


def _run(ray_serve: Any, application: Any, name: str) -> Any:
    try:
        return ray_serve.run(application, name=name)
    except RuntimeError as error:
        said = _own_reason(ray_serve, name) or f"Ray Serve cannot run it: {error}"
        raise ConfigError(" ".join(said.split())) from None


def _own_reason(ray_serve: Any, name: str) -> str:
    """The refusal of one of our processes, out of the traceback that Serve keeps of it."""
    told = ray_serve.status().applications.get(name)
    for each in told.deployments.values() if told is not None else ():
        _, found, reason = each.message.rpartition(f"{ConfigError.__name__}: ")
        if found:
            return str(reason)
    return ""


def _wait_until_ready(handle: Any) -> None:
    """Tell what is being loaded, as it goes on; a ConfigError where it cannot be."""
    told = ""
    while True:
        state, text = handle.progress.remote().result()
        if state == "failed":
            raise ConfigError(text)
        if state == "ready":
            return
        if text != told:
            typer.echo(text, err=True)
            told = text
        time.sleep(LOOK_S)


def _where(config: DeploymentConfig) -> str:
    frontend, control = config.frontend, config.control
    applications, pipelines = config.applications, config.pipelines
    names = ", ".join([each.name for each in applications] + [each.name for each in pipelines])
    rest = "https" if frontend.tls else "http"
    page = "https" if control.tls else "http"
    return (
        f"serving {names}: gRPC {frontend.host}:{frontend.grpc_port}, "
        f"REST {rest}://{frontend.host}:{frontend.http_port}/v2, "
        f"page and metrics {page}://{control.host}:{control.port}; Ctrl-C ends it"
    )
