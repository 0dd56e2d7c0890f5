"""Attacks on a server that this starts, one after the other, beside an honest client.

The honest client sends 200 requests a second from 127.0.0.1, by streams and by single calls in
turn. Attackers come from 127.66.0.0/16. All of it stays on the loopback network. Another server
wants TLS and tokens, and the attacker has a token of its own. A third has the native edge, where
that is built.
"""

import importlib
import multiprocessing
import secrets
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.attacks.attacker import Aim
from benchmarks.certificates import Authority
from benchmarks.figures import Figure, run_parts
from benchmarks.live_server import Running, fermata, resident_mb
from benchmarks.ports import free_port
from fermata.clients.access import Access
from fermata.clients.load.arrivals import single
from fermata.clients.load.ledger import OK
from fermata.clients.load.run import run_load
from fermata.clients.load.sender import SenderOptions, Target
from fermata.clients.wire.tensors import RawTensor
from fermata.deployments.frontend.edge.build import EDGE
from fermata.foundation.units import ms

ATTACKS = {
    "nobody": "no attack, for comparison",
    "half_messages": "messages of which half is sent",
    "zero_windows": "answers that are given no room",
    "rapid_resets": "calls that are reset as soon as they are begun",
    "bursts": "four thousand calls at once",
    "slow_handshakes": "connections that say nothing",
    "parse_stalls": "messages that are slow to parse",
    "strangers": "strangers on the ports of links",
    "bombs": "gzip and pictures that grow when they are unpacked",
    "long_timeouts": "requests that want to wait for ten minutes",
    "status_floods": "floods of health checks and pages",
}
RATE_RPS = 200
SLO_NS = ms(300)
SIZE = 20_000
PAYLOAD_MB = 64
MEMORY_MB = 2 * PAYLOAD_MB + 128
"""Memory of a frontend above that at rest: inputs, messages that have not come whole, and bytes on
their way from one to the other."""
BAD_MAX = 0.5
LINKS = "127.0.0.7"
"""Where links alone listen, so that their ports can be found."""
SECONDS_S, QUICK_S = 15.0, 4.0
APPLICATION = {
    "name": "emulated",
    "slo_ms": SLO_NS / 1e6,
    "input": {"name": "input", "dtype": "UINT8", "shape": [SIZE]},
    "variants": [{"name": "emulated-1", "model": "emulated", "alpha_ms": 1, "beta_ms": 5}],
}
PICTURES = {
    "name": "pictures",
    "slo_ms": SLO_NS / 1e6,
    "input": {"name": "input", "dtype": "UINT8", "shape": [3, 64, 64], "image": True},
    "variants": [{"name": "pictures-1", "model": "emulated", "alpha_ms": 1, "beta_ms": 5}],
}
"""Nothing but pictures that are meant to hurt is sent to it."""
TARGET = Target("emulated", RawTensor("input", "UINT8", (SIZE,), bytes(SIZE)), SLO_NS)


@dataclass(frozen=True, slots=True)
class Guard:
    """How a server is guarded, and how its clients get in."""

    about: str = ""
    frontend: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    honest: Access = field(default_factory=Access)
    attacker: Access = field(default_factory=Access)


NO_GUARD = Guard()
NATIVE = Guard("native edge, ", {"edge": "native"})


@contextmanager
def guarded() -> Iterator[Guard]:
    """TLS and tokens; the attacker is a tenant too."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = Authority(folder, "ca")
        server, ways = authority.vouch("server"), list[Access]()
        tenants: list[dict[str, str]] = []
        for tenant in ("honest", "attacker"):
            token = folder / tenant
            token.write_text(secrets.token_hex(32))
            tenants.append({"name": tenant, "token_file": str(token)})
            ways.append(Access(token_file=str(token), ca_file=str(authority.file)))
        tls = {"certificate_file": str(server.certificate), "key_file": str(server.key)}
        yield Guard("TLS and tokens, ", {"tls": tls}, {"tenants": tenants}, *ways)


def measure_all(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    """Each attack on a server without TLS and tokens, on one with both, and on the native edge
    where it is built."""
    yield from measure(parts, quick)
    if EDGE.path().exists():
        yield from measure(parts, quick, NATIVE)
    with guarded() as guard:
        yield from measure(parts, quick, guard)


def measure(parts: Sequence[str], quick: bool, guard: Guard = NO_GUARD) -> Iterator[Figure]:
    """Each attack in turn, on one server."""
    seconds_s = QUICK_S if quick else SECONDS_S
    http_port = free_port()
    frontend = {"http_port": http_port, "payload_mb": PAYLOAD_MB, **guard.frontend}
    with fermata(
        applications=[APPLICATION, PICTURES],
        frontend=frontend,
        links={"host": LINKS},
        **guard.settings,
    ) as running:
        aim = Aim(
            running.port,
            http_port,
            "emulated",
            (SIZE,),
            running.status_port,
            tuple(ports_at(LINKS)),
            LINKS,
            seconds_s=seconds_s,
            headers=guard.attacker.headers(),
            tls=guard.attacker.tls,
        )
        pids = processes(running)
        for name in parts:
            yield from one(name, aim, running, guard)
        ended = sum(not Path(f"/proc/{pid}").exists() for pid in pids)
        yield Figure(f"{guard.about}processes that ended", ended, "", 0, at_most=True)


def one(name: str, aim: Aim, running: Running, guard: Guard) -> Iterator[Figure]:
    """Figures of one attack."""
    pids = running.pids_of((":Frontend",))
    with peak_mb(pids) as peak, attacked(name, aim):
        bad = 100 * bad_share(running.address, aim.seconds_s, guard.honest)
    about = guard.about + ATTACKS[name]
    yield Figure(f"{about}: honest requests that were bad", bad, "%", BAD_MAX, at_most=True)
    above = max(0.0, peak.grown_mb - MEMORY_MB)
    yield Figure(f"{about}: memory above the limits", above, "MB", 0, at_most=True)


def bad_share(address: str, seconds_s: float, access: Access) -> float:
    """The share of an honest client's requests that were not answered in time."""
    due = single(np.arange(int(seconds_s * RATE_RPS / 2), dtype=np.int64) * (10**9 // RATE_RPS))
    bad = total = 0
    for unary in (False, True):
        ledger = run_load(SenderOptions(address, 4, unary, access=access), [TARGET], due)
        good = ledger.mask(OK) & (ledger.answered_ns - ledger.scheduled_ns <= SLO_NS)
        bad += int((~good).sum())
        total += len(good)
    return bad / total


@contextmanager
def attacked(name: str, aim: Aim) -> Iterator[None]:
    """An attack that goes on for as long as the block does."""
    if name == "nobody":
        yield
        return
    attacker = multiprocessing.get_context("spawn").Process(
        target=_attack, args=(name, aim), daemon=True
    )
    attacker.start()
    try:
        yield
        assert attacker.exitcode in (None, 0), f"the attack {name} broke"
    finally:
        attacker.kill()
        attacker.join()


def _attack(name: str, aim: Aim) -> None:
    run = importlib.import_module(f"benchmarks.attacks.{name}").run
    while True:
        run(aim)


class Peak:
    """The most memory that processes have taken, beyond the first look."""

    def __init__(self) -> None:
        self.grown_mb = 0.0


@contextmanager
def peak_mb(pids: Sequence[int]) -> Iterator[Peak]:
    peak, done = Peak(), threading.Event()
    before = {pid: resident_mb(pid) for pid in pids}

    def look() -> None:
        while not done.wait(0.05):
            for pid in pids:
                with suppress(OSError):
                    peak.grown_mb = max(peak.grown_mb, resident_mb(pid) - before[pid])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def processes(running: Running) -> list[int]:
    """Those that an attack must not end."""
    return running.pids_of((":Frontend", "RouterActor", ":Backend", ":ControlPlane"))


def ports_at(host: str) -> Iterator[int]:
    """Ports on which anybody listens at this address of the loopback network."""
    wanted = "".join(f"{int(part):02X}" for part in reversed(host.split(".")))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, _, state = line.split()[1:4]
        address, _, port = local.partition(":")
        if address == wanted and state == "0A":
            yield int(port, 16)


if __name__ == "__main__":
    run_parts("Attacks", measure_all, ATTACKS)
