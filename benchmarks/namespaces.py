"""Two network namespaces joined by a veth pair, the uplink shaped by `tc`. Needs root."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BURST = "16kb"
"""Of the shaper's bucket: small, so that a frame meets the rate and not the bucket."""
QUEUE = "500ms"
"""What the shaper holds before it drops: a radio's buffer, not a switch's."""
CLONE_NEWNET = 0x40000000
FOLDER = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class Link:
    """A client's and a server's namespace, by name, and their private addresses."""

    client: str
    server: str
    device: str
    """The client's end of the pair."""
    address: str
    """The server's, as clients reach it."""
    client_address: str

    def shape(self, mbps: float) -> None:
        """Let the uplink carry so much from now on."""
        rate = ("rate", f"{mbps}mbit", "burst", BURST, "latency", QUEUE)
        _run(
            "ip",
            "netns",
            "exec",
            self.client,
            "tc",
            "qdisc",
            "replace",
            "dev",
            self.device,
            "root",
            "tbf",
            *rate,
        )


def missing() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"network namespaces need {tool} (Debian: iproute2)"
    probe = subprocess.run(["ip", "netns", "add", "fermata-probe"], capture_output=True, text=True)
    if probe.returncode:
        return f"network namespaces cannot be made: {probe.stderr.strip()}"
    _run("ip", "netns", "delete", "fermata-probe")
    return ""


@contextmanager
def joined(mbps: float | None) -> Iterator[Link]:
    """Both namespaces up, the client's uplink shaped where a rate is given; gone again
    afterwards."""
    tag = os.getpid()
    names = f"fermata-c{tag}", f"fermata-s{tag}", f"fc{tag}"
    link = Link(*names, address="10.77.0.1", client_address="10.77.0.2")
    far = f"fs{tag}"
    for name in (link.client, link.server):
        _run("ip", "netns", "add", name)
    try:
        _run(
            "ip",
            "link",
            "add",
            link.device,
            "netns",
            link.client,
            "type",
            "veth",
            "peer",
            "name",
            far,
            "netns",
            link.server,
        )
        for name, device, address in (
            (link.client, link.device, f"{link.client_address}/24"),
            (link.server, far, f"{link.address}/24"),
        ):
            inside = ("ip", "-n", name)
            _run(*inside, "address", "add", address, "dev", device)
            for each in ("lo", device):
                _run(*inside, "link", "set", each, "up")
            # Programs that look for their own address ask which one a packet to anywhere has.
            _run(*inside, "route", "add", "default", "dev", device)
        if mbps is not None:
            link.shape(mbps)
        yield link
    finally:
        for name in (link.client, link.server):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """The command that runs this one in a namespace."""
    return ["ip", "netns", "exec", namespace, *command]


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """This thread, and whatever it starts, in a namespace until the block ends."""
    with (FOLDER / namespace).open() as there, Path("/proc/self/ns/net").open() as back:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(back.fileno())


def _enter(file: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "a network namespace cannot be entered")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
