"""Ports that are taken when a server starts, or later: a refusal by name, or it comes back."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
from served import ROOT, Server, descendants, get, serving, wait_until
from stand_in import Running, options

from benchmarks.ports import free_port
from fermata.deployments.frontend.protocol.server import ServerOptions
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.foundation.errors import ConfigError, ServingError
from fermata.foundation.units import ms

pytestmark = pytest.mark.live

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "deployments/emulated.yaml").read_text())
OPTIONS = ("frontend.grpc_port", "frontend.http_port", "control.port")
REFUSED_S = 20
"""Most of it is Python's start, on a machine that is busy."""
BACK_S = 90
DIRECT = """
import logging, sys
import ray
from ray import serve
from fermata.deployments.app import build

ray.init(address="local", log_to_driver=False, logging_level=logging.ERROR)
serve.start(http_options={"port": int(sys.argv[2])})
try:
    serve.run(build({"config": sys.argv[1]}), name="other")
except RuntimeError:
    other = serve.status().applications["other"]
    print(other.status.value, other.deployments["Frontend"].message)
finally:
    serve.shutdown()
    ray.shutdown()
"""


def write(folder: Path, ports: tuple[int, int, int], **frontend: Any) -> Path:
    grpc_port, http_port, port = ports
    given = {"grpc_port": grpc_port, "http_port": http_port, **frontend}
    path = folder / "second.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "frontend": given, "control": {"port": port}}))
    return path


def refused(path: Path) -> str:
    """What `fermata serve` says, in one line and so before Ray has started."""
    command = [sys.executable, "-m", "fermata.commands.main", "serve", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=REFUSED_S)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


def frontends(server: Server) -> list[int]:
    found = []
    for pid in descendants(server.process.pid):
        title = Path(f"/proc/{pid}/cmdline")
        if title.exists() and b":Frontend" in title.read_bytes():
            found.append(pid)
    return found


def ready(server: Server) -> bool:
    return bool(get(f"http://127.0.0.1:{server.http_port}/v2/health/ready") is not None)


def grab(port: int) -> socket.socket:
    """The port, as soon as it is free."""
    end_s = time.monotonic() + BACK_S
    while time.monotonic() < end_s:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
            one.listen()
            return one
        except OSError:
            one.close()
    raise AssertionError(f"{port} was never free")


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_server_is_refused_by_name(
    server: Server, tmp_path: Path, index: int, processes: int
) -> None:
    """The first one shares its ports among its own frontends, with nobody else."""
    ports = [free_port(), free_port(), free_port()]
    ports[index] = server.ports[index]
    line = refused(write(tmp_path, (ports[0], ports[1], ports[2]), processes=processes))
    assert line.startswith(f"fermata: {OPTIONS[index]}={ports[index]}: ")
    assert f"is taken by process {server.process.pid} (" in line
    assert line.endswith(f"set another {OPTIONS[index]}")
    assert ready(server)


def test_a_foreign_process_that_would_share_the_port_is_in_the_way(tmp_path: Path) -> None:
    ports = (free_port(), free_port(), free_port())
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        foreign.bind(("0.0.0.0", ports[0]))
        foreign.listen()
        line = refused(write(tmp_path, ports, processes=2))
    assert f"{OPTIONS[0]}={ports[0]}" in line
    assert f"process {os.getpid()} (" in line


@pytest.mark.long
def test_frontends_refuse_by_themselves_where_nobody_has_looked(
    server: Server, tmp_path: Path
) -> None:
    """As `serve run` starts them: another deployment, on ports that several could share."""
    path = write(tmp_path, server.ports, processes=2)
    command = [sys.executable, "-c", DIRECT, str(path), str(free_port())]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert "DEPLOY_FAILED" in done.stdout, done.stderr[-3000:]
    assert f"{OPTIONS[0]}={server.grpc_port}: 127.0.0.1:{server.grpc_port} is taken" in done.stdout
    assert ready(server)


def shared(deployment: str, ports: tuple[int, int]) -> FrontendOptions:
    server = ServerOptions(
        grpc_port=ports[0],
        http_port=ports[1],
        reuse_port=True,
        deployment=deployment,
        drain_ns=ms(500),
    )
    return options(server=server)


def test_frontends_of_one_deployment_share_their_ports_with_no_other() -> None:
    ports = free_port(), free_port()
    pair = [Running(lambda: shared("cluster/one", ports)) for _ in range(2)]
    # Both are in this process, and each knows the sockets of both; the next one is a stranger.
    with pytest.raises(ConfigError, match=f"grpc_port={ports[0]}.* is taken by"):
        Running(lambda: shared("cluster/two", ports))
    for each in pair:
        each.frontend.check()
    for each in pair:
        each.close()
    again = Running(lambda: shared("cluster/two", ports))
    again.frontend.check()
    again.close()


@pytest.mark.parametrize("index", [0, 1])
def test_a_frontend_that_has_lost_a_port_is_not_well(index: int) -> None:
    running = Running(options)
    server = running.frontend.server
    assert len(server.listening.sockets) == 2
    running.frontend.check()
    fd = list(server.listening.sockets)[index]
    with socket.socket(fileno=os.dup(fd)) as listener:
        listener.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ServingError, match="is not listened on any more"):
        running.frontend.check()
    running.close()


@pytest.mark.long
def test_a_port_that_is_lost_is_taken_back(tmp_path: Path) -> None:
    """Then the server ends by Ctrl-C, and the next one has its ports at once."""
    with serving(tmp_path, CONFIG, backends=2) as one:
        (frontend,) = frontends(one)
        os.kill(frontend, signal.SIGKILL)
        with grab(one.grpc_port):
            # The next frontend has come and found the port taken.
            wait_until(lambda: set(frontends(one)) - {frontend} != set(), BACK_S)
        wait_until(lambda: ready(one), BACK_S)
        # Connections that its clients have left behind.
        socket.create_connection(("127.0.0.1", one.grpc_port)).close()
    with serving(tmp_path, CONFIG, backends=2, ports=one.ports) as again:
        assert ready(again)
