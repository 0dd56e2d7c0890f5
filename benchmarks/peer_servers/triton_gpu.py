"""Triton on a GPU with the runner that our own backends have, under several settings at once.

A setting is a model of its own to Triton, with processes of its own, so that no start lies between
two settings. Those that get no requests take memory, and no time.
"""

import importlib.util
import itertools
import json
import math
import os
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from venv import create

from benchmarks.http_load import HttpOptions, HttpSender, post
from benchmarks.live_server import Running, started
from benchmarks.peer_servers.knobs import HTTP
from benchmarks.peer_servers.launch import (
    CONNECTIONS,
    PROBE_S,
    Served,
    add_triton_backend,
    add_triton_model,
    triton_command,
    triton_environment,
    triton_head,
)
from benchmarks.peer_servers.pipeline_triton import CODE, PARAMETERS, STAGE, TENSOR
from benchmarks.peer_servers.setup import VARIABLE
from benchmarks.peer_servers.venv import ROOT, Venv
from benchmarks.ports import free_port
from fermata.clients.load.sender import Sender, SenderOptions, Target
from fermata.clients.wire.tensors import RawTensor
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms

PACKAGE, LIBRARIES = "pytriton", "nvidia_pytriton.libs"
QUEUE = 0.7
"""A request is refused when it has been queued for this share of the SLO."""
START_S = 240.0
STREAMS = 31
"""Each sender opens so many; it has no divisor in common with the number of senders."""
OPTIONS = (
    "--backend-config=python,shm-default-byte-size=67108864",
    "--backend-config=python,stub-timeout-seconds=200",
    "--grpc-infer-allocation-pool-size=256",
    "--model-load-thread-count=32",
    # It would wait half a minute for its instances.
    "--exit-timeout-secs=2",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One configuration of its dynamic batcher."""

    wait_ms: float
    """A batch that is not full is held for so long."""
    batch: int
    """The size that is preferred, and the largest."""
    instances: int
    """Processes of each model, which run batches beside one another."""

    def __str__(self) -> str:
        return f"wait {self.wait_ms:g} ms, batch {self.batch}, instances {self.instances}"

    def of(self, network: str) -> str:
        """Triton's name of a network under this setting."""
        return f"{network}-{self.wait_ms:g}-{self.batch}-{self.instances}"


def grid(
    waits_ms: Sequence[float], batches: Sequence[int], instances: Sequence[int]
) -> tuple[Setting, ...]:
    """Every combination."""
    return tuple(Setting(*each) for each in itertools.product(waits_ms, batches, instances))


@dataclass(frozen=True, slots=True)
class Network:
    """A network as Triton's processes load it."""

    name: str
    model: str
    """By its name in a configuration of ours."""
    shape: tuple[int, ...]
    device: str
    choice: Path
    """Kernels that were chosen for it; none where there is no such file."""

    @property
    def size(self) -> int:
        """Bytes of an input."""
        return math.prod(self.shape)

    def write(self, folder: Path, setting: Setting) -> Path:
        """All that a process is told."""
        path = folder / f"{setting.of(self.name)}.json"
        told = {
            "name": self.name,
            "model": self.model,
            "shape": self.shape,
            "device": self.device,
            "choice": os.fspath(self.choice),
            "batch": setting.batch,
        }
        path.write_text(json.dumps(told))
        return path


def model_config(network: Network, setting: Setting, path: Path, slo_ms: float) -> str:
    """The file of one network under one setting."""
    return STAGE.format(
        name=setting.of(network.name),
        batch=setting.batch,
        input=TENSOR.format(name="input", kind="UINT8", size=network.size),
        output=TENSOR.format(name="output", kind="FP32", size=-1),
        # Its processes find the GPU themselves, and get their inputs in host memory either way.
        groups=f"{{count: {setting.instances} kind: KIND_CPU}}",
        wait_us=round(1000 * setting.wait_ms),
        preferred=f"preferred_batch_size: [{setting.batch}]",
        queue_us=round(1000 * QUEUE * slo_ms),
        parameters=PARAMETERS.format(variable=VARIABLE, path=path),
    )


def make_environment(folder: Path) -> Venv:
    """An environment with the packages of this process, as the package of Triton wants it.

    It need not be installed: a wheel that was unpacked on the path will do.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("Triton is not there: install nvidia-pytriton, or unpack its wheel")
    site = Path(spec.submodule_search_locations[0]).parent
    create(folder, with_pip=False, symlinks=True)
    venv = Venv(folder)
    # Its processes do not look at PYTHONPATH.
    paths = [os.fspath(ROOT), *(path for path in sys.path if path)]
    (venv.packages / "path.pth").write_text("\n".join(paths) + "\n")
    for name in (PACKAGE, LIBRARIES):
        (venv.packages / name).symlink_to(site / name)
    # An archiver may have dropped their permissions.
    for program in ("bin/tritonserver", "python_backend_stubs/*/triton_python_backend_stub"):
        for path in (site / PACKAGE / "tritonserver").glob(program):
            if not os.access(path, os.X_OK):
                path.chmod(0o755)
    return venv


def _environment(venv: Venv, folder: Path) -> dict[str, str]:
    found = triton_environment(venv)
    # Python's own library, where it lies beside a Python that the loader does not know.
    name = f"libpython{sysconfig.get_python_version()}.so.1.0"
    (folder / "lib").mkdir()
    for place in (str(sysconfig.get_config_var("LIBDIR")), f"{sys.base_prefix}/lib"):
        if (Path(place) / name).exists():
            (folder / "lib" / name).symlink_to(Path(place) / name)
            break
    # Drivers may be found by it alone.
    known = os.environ.get("LD_LIBRARY_PATH", "")
    paths = (os.fspath(folder / "lib"), found["LD_LIBRARY_PATH"], known)
    return {
        **found,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths)),
        # As in a backend of ours, whose one core does not copy with many threads.
        "OMP_NUM_THREADS": "1",
    }


@dataclass(frozen=True, slots=True)
class TritonGpu:
    """A server that is up."""

    running: Running
    http_port: int
    slo_ms: float

    @property
    def grpc(self) -> str:
        return self.running.address

    def targets(self, setting: Setting, networks: Sequence[Network], given: bytes) -> list[Target]:
        """One for each network."""
        return [
            Target(
                setting.of(each.name),
                RawTensor("input", "UINT8", (1, each.size), given),
                ms(self.slo_ms),
                timeout=False,
            )
            for each in networks
        ]

    def served(self, way: str, targets: list[Target]) -> Served:
        """How requests get there by streams, or over HTTP, which has more threads."""
        if way == HTTP:
            return self._by_http(targets)
        return Served(SenderOptions(self.grpc, STREAMS), Sender, targets)

    def _by_http(self, targets: list[Target]) -> Served:
        requests = []
        for target in targets:
            head = triton_head(len(target.tensor.data))
            length = f"Inference-Header-Content-Length: {len(head)}"
            path, body = f"/v2/models/{target.model}/infer", head + target.tensor.data
            requests.append(post(path, body, "application/octet-stream", length))
        address = f"127.0.0.1:{self.http_port}"
        return Served(
            HttpOptions(address, CONNECTIONS, requests=tuple(requests)), HttpSender, targets
        )


@contextmanager
def triton_gpu(
    folder: Path,
    held: Sequence[tuple[Setting, Network]],
    slo_ms: float,
    environment: dict[str, str],
) -> Iterator[TritonGpu]:
    """A running server that holds these networks under these settings."""
    folder.mkdir()
    venv = make_environment(folder / "env")
    add_triton_backend(venv, folder)
    code = CODE.format(module="triton_runner")
    for setting, network in held:
        config = model_config(network, setting, network.write(folder, setting), slo_ms)
        add_triton_model(folder, setting.of(network.name), config, code)
    http_port, grpc_port = free_port(), free_port()
    command = [*triton_command(venv, os.fspath(folder), http_port, grpc_port), *OPTIONS]

    def ready(running: Running) -> bool:
        url = f"http://127.0.0.1:{http_port}/v2/health/ready"
        with urllib.request.urlopen(url, timeout=PROBE_S) as answer:
            return bool(answer.status == 200)

    given = {**_environment(venv, folder), **environment}
    with started(command, grpc_port, ready, given, together=False, wait_s=START_S) as running:
        yield TritonGpu(running, http_port, slo_ms)
