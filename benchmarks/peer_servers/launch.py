"""Starts a peer, or Fermata itself, on a scene's emulated GPUs, and says how to send to it."""

import base64
import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.http_load import HttpOptions, HttpSender, post
from benchmarks.live_server import Running, fermata, started
from benchmarks.natives import with_natives
from benchmarks.peer_servers.knobs import HTTP, SPLIT, UNARY, Knobs
from benchmarks.peer_servers.scenes import INPUT_BYTES, Scene
from benchmarks.peer_servers.setup import VARIABLE, ModelSetup, Setup
from benchmarks.peer_servers.venv import Venv
from benchmarks.ports import free_port
from fermata.clients.load.sender import Sender, SenderOptions, Target
from fermata.clients.wire.tensors import RawTensor
from fermata.foundation.units import ms

STREAMS = 8
CONNECTIONS = 256
"""Over HTTP, which has one request a connection: far more than a server can answer in time, so
that what waits at the client for a connection is no relief that the figures would show."""
PROBE_S = 2.0
INPUT = bytes(INPUT_BYTES)
OWN_PACKAGES = {"PYTHONPATH": ""}
"""A peer runs on the packages of its own environment, wherever ours come from."""
TRITON_CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: {batch}
input [{{name: "input" data_type: TYPE_UINT8 dims: [{bytes}]}}]
output [{{name: "output" data_type: TYPE_FP32 dims: [1]}}]
instance_group [{{count: {workers} kind: KIND_CPU}}]
dynamic_batching {{
  max_queue_delay_microseconds: {wait_us}
  default_queue_policy {{timeout_action: REJECT default_timeout_microseconds: {queue_us}}}
}}
parameters {{key: "{variable}" value: {{string_value: "{setup}"}}}}
"""
TRITON_MODEL = "from benchmarks.peer_servers.triton_model import TritonPythonModel  # noqa: F401\n"


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is up, and how requests get to it."""

    options: SenderOptions
    kind: type[Sender]
    targets: list[Target]


Start = Callable[[Venv, Scene, Knobs], AbstractContextManager[Served]]


def gpus_of(scene: Scene, knobs: Knobs) -> list[tuple[int, ...]]:
    """The GPU of each worker of each model."""
    if knobs.placement != SPLIT:
        return [tuple(range(scene.gpus)) * knobs.workers for _ in scene.models]
    # The heaviest first, each to where the least work is.
    load = [0.0] * scene.gpus
    homes = [0] * len(scene.models)
    work = []
    for each, share in zip(scene.models, scene.shares(), strict=True):
        size = each.batch_size_max(knobs.batch)
        work.append(share * each.run_ms(size) / size)
    for index in sorted(range(len(homes)), key=lambda index: -work[index]):
        homes[index] = load.index(min(load))
        load[homes[index]] += work[index]
    return [(home,) * knobs.workers for home in homes]


def setup_of(scene: Scene, knobs: Knobs, folder: str, port: int) -> Setup:
    """The knobs worked out for each model."""
    models = tuple(
        ModelSetup(
            name=each.name,
            alpha_ms=each.alpha_ms,
            beta_ms=each.beta_ms,
            batch_size_max=each.batch_size_max(knobs.batch),
            wait_ms=knobs.wait * each.slo_ms,
            queue_ms=knobs.queue * each.slo_ms,
            gpus=gpus,
        )
        for each, gpus in zip(scene.models, gpus_of(scene, knobs), strict=True)
    )
    options = {"api_servers": knobs.api_servers, "fast_queue": knobs.fast_queue}
    return Setup(folder, port, models, options)


def _targets(scene: Scene, shape: tuple[int, ...], timeout: bool) -> list[Target]:
    tensor = RawTensor("input", "UINT8", shape, INPUT)
    return [Target(each.name, tensor, ms(each.slo_ms), timeout=timeout) for each in scene.models]


def _http(scene: Scene, address: str, requests: list[bytes]) -> Served:
    options = HttpOptions(address, CONNECTIONS, requests=tuple(requests))
    return Served(options, HttpSender, _targets(scene, (INPUT_BYTES,), timeout=False))


def _posts_ok(port: int, path: str, body: bytes, kind: str, **headers: str) -> bool:
    given = {"Content-Type": kind, **headers}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, given)
    try:
        with urllib.request.urlopen(request, timeout=PROBE_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


@contextmanager
def _python_peer(
    module: str, venv: Venv, scene: Scene, knobs: Knobs, body: bytes, kind: str
) -> Iterator[Served]:
    """A peer that is a Python program with a path for each model."""
    with tempfile.TemporaryDirectory() as folder:
        setup = setup_of(scene, knobs, folder, free_port())
        environment = {**OWN_PACKAGES, VARIABLE: str(setup.write())}
        command = [str(venv.python), "-m", f"benchmarks.peer_servers.{module}"]

        def ready(running: Running) -> bool:
            return all(_posts_ok(setup.port, f"/{each.name}", body, kind) for each in scene.models)

        with started(command, setup.port, ready, environment) as running:
            requests = [post(f"/{each.name}", body, kind) for each in scene.models]
            yield _http(scene, running.address, requests)


def mosec(venv: Venv, scene: Scene, knobs: Knobs) -> AbstractContextManager[Served]:
    return _python_peer("mosec_server", venv, scene, knobs, INPUT, kind="application/octet-stream")


def litserve(venv: Venv, scene: Scene, knobs: Knobs) -> AbstractContextManager[Served]:
    body = json.dumps({"input": base64.b64encode(INPUT).decode()}).encode()
    return _python_peer("litserve_server", venv, scene, knobs, body, kind="application/json")


def add_triton_backend(venv: Venv, folder: Path) -> None:
    """Triton's Python backend, with the stub for our Python."""
    dist = venv.packages / "pytriton" / "tritonserver"
    version = venv.packages.parent.name.removeprefix("python")
    shutil.copytree(dist / "backends", folder / "backends")
    shutil.copy(
        dist / "python_backend_stubs" / version / "triton_python_backend_stub",
        folder / "backends" / "python",
    )


def add_triton_model(folder: Path, name: str, config: str, code: str = "") -> None:
    """A model of Triton's repository; without code it is one that Triton puts together."""
    version = folder / "models" / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(config)
    if code:
        (version / "model.py").write_text(code)


def triton_command(venv: Venv, folder: str, http_port: int, grpc_port: int) -> list[str]:
    return [
        str(venv.packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"),
        f"--model-repository={folder}/models",
        f"--backend-directory={folder}/backends",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--allow-metrics=false",
    ]


def triton_environment(venv: Venv) -> dict[str, str]:
    return {
        **OWN_PACKAGES,
        "LD_LIBRARY_PATH": str(venv.packages / "nvidia_pytriton.libs"),
        "PATH": f"{venv.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def triton_head(size: int) -> bytes:
    """The JSON that precedes a binary tensor of one row over HTTP."""
    described = {
        "name": "input",
        "shape": [1, size],
        "datatype": "UINT8",
        "parameters": {"binary_data_size": size},
    }
    return json.dumps({"inputs": [described]}).encode()


def _lay_out(venv: Venv, setup: Setup, path: Path) -> None:
    """Triton's model repository and its Python backend."""
    folder = Path(setup.folder)
    add_triton_backend(venv, folder)
    for each in setup.models:
        add_triton_model(
            folder,
            each.name,
            TRITON_CONFIG.format(
                name=each.name,
                batch=each.batch_size_max,
                bytes=INPUT_BYTES,
                workers=len(each.gpus),
                wait_us=round(each.wait_ms * 1000),
                queue_us=round(each.queue_ms * 1000),
                variable=VARIABLE,
                setup=path,
            ),
            TRITON_MODEL,
        )


@contextmanager
def triton(venv: Venv, scene: Scene, knobs: Knobs) -> Iterator[Served]:
    """Its server, out of the package that brings it, on a model repository of ours."""
    with tempfile.TemporaryDirectory() as folder:
        setup = setup_of(scene, knobs, folder, free_port())
        _lay_out(venv, setup, setup.write())
        grpc_port = free_port()
        command = triton_command(venv, folder, setup.port, grpc_port)
        environment = triton_environment(venv)
        head = triton_head(INPUT_BYTES)
        length = {"Inference-Header-Content-Length": str(len(head))}
        paths = [f"/v2/models/{each.name}/infer" for each in scene.models]
        kind = "application/octet-stream"

        def ready(running: Running) -> bool:
            return all(_posts_ok(setup.port, path, head + INPUT, kind, **length) for path in paths)

        # It waits half a minute for instances that Ctrl-C has already ended.
        with started(command, grpc_port, ready, environment, together=False) as running:
            if knobs.way == HTTP:
                extra = [f"{name}: {value}" for name, value in length.items()]
                requests = [post(path, head + INPUT, kind, *extra) for path in paths]
                yield _http(scene, f"127.0.0.1:{setup.port}", requests)
            else:
                options = SenderOptions(running.address, STREAMS, unary=knobs.way == UNARY)
                targets = _targets(scene, (1, INPUT_BYTES), timeout=False)
                yield Served(options, Sender, targets)


@contextmanager
def ours(scene: Scene) -> Iterator[Served]:
    """`fermata serve`: a backend is the only process on its GPU, so its lock is its own thread."""
    backend = {"count": scene.gpus, "device": "emulated", "cpus": 0.1}
    given = with_natives({"applications": scene.applications(), "backend": backend})
    with fermata(**given) as running:
        options = SenderOptions(running.address, STREAMS)
        yield Served(options, Sender, _targets(scene, (INPUT_BYTES,), timeout=True))


PEERS: dict[str, Start] = {"triton": triton, "mosec": mosec, "litserve": litserve}
