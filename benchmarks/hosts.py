"""A server on two hosts of one machine: network namespaces, each with a name and a /dev/shm of its
own, and a node of Ray. The first has router and frontend, the second the backends. Needs root."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.live_server import ROOT, Running, started, stop
from benchmarks.namespaces import Link, inside
from benchmarks.ports import free_port

RAY_PORT = 6379
STORE_BYTES = 100 << 20
START_S = 60.0
OPEN = {"RAY_AUTH_MODE": "disabled"}
"""Nobody else is in these namespaces; a token would be written to the user's home."""
NEAR, FAR = "near", "far"
"""Resources of Ray that the hosts offer."""
HOST = 'hostname "$1"; mount -t tmpfs none /dev/shm; shift; exec "$@"'
"""Without it processes of two namespaces would share memory, as they do on one host."""


class OnHosts(Running):
    """A server whose processes belong to several nodes."""

    def __init__(self, server: Running, nodes: list[Running]) -> None:
        super().__init__(server.process, server.port, server.status_port)
        self.nodes = nodes

    def family(self) -> list[int]:
        return super().family() + [pid for node in self.nodes for pid in node.family()]


@contextmanager
def two_hosts(link: Link, config: dict[str, Any], folder: Path) -> Iterator[OnHosts]:
    """The server, up on both; to be used from within the first one's namespace (`link.server`)."""
    head = [
        *("--head", f"--port={RAY_PORT}", f"--node-ip-address={link.address}"),
        *("--include-dashboard=false", f"--temp-dir={folder / 'ray'}"),
    ]
    address = f"{link.address}:{RAY_PORT}"
    other = [f"--address={address}", f"--node-ip-address={link.client_address}"]
    with ExitStack() as undo:
        nodes = [
            undo.enter_context(_node(link.server, NEAR, head, folder)),
            undo.enter_context(_node(link.client, FAR, other, folder)),
        ]
        path = folder / "two_hosts.yaml"
        near, far = {"resources": {NEAR: 0.01}}, {"resources": {FAR: 0.01}}
        port, status_port = free_port(), free_port()
        ports = {"grpc_port": port, "http_port": free_port()}
        placed = {
            **config,
            "frontend": {**config["frontend"], **ports, **near},
            "router": near,
            "links": {**config["links"], "host": "node"},
            "control": {"port": status_port, **near},
            "backend": {**config["backend"], **far},
        }
        path.write_text(yaml.safe_dump(placed))
        command = [sys.executable, "-m", "fermata.commands.main", "serve", str(path)]
        wanted = config["backend"]["count"]

        def ready(running: Running) -> bool:
            status = running.status()
            return len(status["backends"]) == wanted and bool(status["frontends"])

        environment = {"RAY_ADDRESS": address, **OPEN}
        server = undo.enter_context(
            started(command, port, ready, environment, status_port=status_port, together=False)
        )
        yield OnHosts(server, nodes)


@contextmanager
def _node(namespace: str, name: str, options: list[str], folder: Path) -> Iterator[Running]:
    """One node of Ray, on a host of that name."""
    ray = str(Path(sys.executable).parent / "ray")
    command = [
        *(ray, "start", "--block", "--disable-usage-stats", *options),
        *("--num-cpus=2", f"--object-store-memory={STORE_BYTES}", f'--resources={{"{name}": 1}}'),
    ]
    alone = ["unshare", "--uts", "--mount", "sh", "-c", HOST, "sh", name, *command]
    log_path = folder / f"{name}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            inside(namespace, alone),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONPATH": f"{folder}:{ROOT}",
                "RAY_worker_niceness": "0",
                **OPEN,
            },
            process_group=0,
        )
    running = Running(process, 0, 0)
    try:
        _wait(process, log_path)
        yield running
    finally:
        stop(running, together=False, number=signal.SIGTERM)


def _wait(process: "subprocess.Popen[bytes]", log: Path) -> None:
    until_s = time.monotonic() + START_S
    while "Ray runtime started" not in log.read_text():
        if process.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError(f"a node of Ray did not start: {log.read_text()[-2000:]}")
        time.sleep(0.2)
