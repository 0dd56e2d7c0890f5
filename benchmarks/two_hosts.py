"""Inputs of 150 KB between two hosts, with TLS on links, against the same on one host.

A host is a network namespace with a /dev/shm of its own and a node of Ray. The first has router,
frontend and clients, the second the backends. They are emulated GPUs, and slow enough to be the
limit: both hosts have the cores of one machine. Needs root.
"""

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calm import undisturbed
from benchmarks.certificates import Authority
from benchmarks.figures import Figure, run
from benchmarks.hosts import two_hosts
from benchmarks.live_load import STREAMS
from benchmarks.live_server import Running, fermata
from benchmarks.namespaces import Link, entered, joined, missing
from benchmarks.search import highest
from fermata.clients.load.arrivals import poisson, single
from fermata.clients.load.report import LoadReport, report
from fermata.clients.load.run import START_NS, run_load
from fermata.clients.load.sender import SenderOptions, Target
from fermata.clients.wire.tensors import RawTensor
from fermata.foundation.units import ms, seconds

SLO_MS, ALPHA_MS, BETA_MS, BACKENDS = 100, 4, 10, 2
"""l(b) = 10 + 4 b ms: two of them serve about 400 requests a second."""
INPUT_BYTES = 150_000
GUESS_RPS, CALM_RPS = 260.0, 200.0
"""The rate that is tried first, and one that both serve with ease, for the CPU time."""
BAD_RATE_MAX, WARMUP_S = 0.01, 1.5
GOODPUT_MIN, MORE_US_MAX = 0.9, 250.0
ONE, TWO = "one host", "two hosts"
SEED = 1_000_000


def config(links: Authority, backends: int = BACKENDS) -> dict[str, Any]:
    """The server on emulated GPUs, its links with TLS."""
    peer = links.vouch("fermata")
    return {
        "applications": [
            {
                "name": "emulated",
                "slo_ms": SLO_MS,
                "input": {"name": "input", "dtype": "UINT8", "shape": [INPUT_BYTES]},
                "variants": [
                    {
                        "name": "emulated-1",
                        "model": "emulated",
                        "alpha_ms": ALPHA_MS,
                        "beta_ms": BETA_MS,
                    }
                ],
            }
        ],
        "backend": {"count": backends, "device": "emulated", "cpus": 0.1},
        "frontend": {"processes": 1},
        "links": {
            "tls": {
                "certificate_file": str(peer.certificate),
                "key_file": str(peer.key),
                "ca_file": str(links.file),
            }
        },
    }


def send(server: Running, rate_rps: float, seconds_s: float, seed: int = SEED) -> LoadReport:
    """Poisson arrivals at that rate, by streams."""
    total_ns = seconds(WARMUP_S + seconds_s)
    due = single(poisson(rate_rps, total_ns, np.random.default_rng(seed)))
    target = Target(
        "emulated",
        RawTensor("input", "UINT8", (INPUT_BYTES,), bytes(INPUT_BYTES)),
        ms(SLO_MS),
    )
    found = run_load(SenderOptions(server.address, STREAMS), [target], due)
    return report(found, np.array([ms(SLO_MS)]), seconds(WARMUP_S), total_ns)


def cpu_us(server: Running, seconds_s: float) -> dict[str, float]:
    """CPU time of a request at the calm rate, by role."""

    def probe() -> dict[str, float]:
        spent: dict[str, float] = {}

        def watch() -> None:
            # The sender's process has to start first.
            time.sleep(WARMUP_S + 1 + START_NS / 1e9)
            before, from_s = server.cpu_s(), time.monotonic()
            time.sleep(seconds_s - 1)
            after, requests = server.cpu_s(), CALM_RPS * (time.monotonic() - from_s)
            spent.update({role: 1e6 * (after[role] - before[role]) / requests for role in after})

        watching = threading.Thread(target=watch)
        watching.start()
        send(server, CALM_RPS, seconds_s + 0.5)
        watching.join()
        return spent

    return undisturbed(probe)


def serves(server: Running, rate_rps: float, seconds_s: float) -> bool:
    return undisturbed(lambda: send(server, rate_rps, seconds_s)).bad_rate <= BAD_RATE_MAX


@contextmanager
def both(link: Link, folder: Path) -> Iterator[dict[str, Running]]:
    """The two servers; what else the machine does meets both."""
    links = Authority(folder, "links-ca")
    with ExitStack() as undo:
        one = undo.enter_context(fermata(**config(links)))
        two = undo.enter_context(two_hosts(link, config(links), folder))
        yield {ONE: one, TWO: two}


def measured(servers: dict[str, Running], quick: bool) -> Iterator[Figure]:
    """Both in turn, more than once: the best of each is compared."""
    rounds, seconds_s, precision, probes = (1, 3.0, 0.1, 3) if quick else (3, 4.0, 0.03, 5)
    spent: dict[str, dict[str, float]] = {}
    best = dict.fromkeys(servers, 0.0)
    for _ in range(rounds):
        for name, server in servers.items():
            found = cpu_us(server, 5.0)
            if name not in spent or sum(found.values()) < sum(spent[name].values()):
                spent[name] = found
            rate_rps = highest(
                lambda rate, server=server: serves(server, rate, seconds_s),  # type: ignore[misc]
                best[name] * (1 + precision) or GUESS_RPS,
                precision,
                probes,
            )
            best[name] = max(best[name], rate_rps)
    for name in servers:
        for role, role_us in spent[name].items():
            yield Figure(f"{name}: CPU time of a request, {role}", role_us, "us", 0)
        yield Figure(f"{name}: goodput", best[name], "req/s", 0)
    assert min(best.values()) > 0, f"nothing was served here: {best}"
    yield Figure("two hosts: goodput over one host", best[TWO] / best[ONE], "", GOODPUT_MIN)
    more_us = sum(spent[TWO].values()) - sum(spent[ONE].values())
    name = "two hosts: CPU time of a request more than on one host"
    yield Figure(name, more_us, "us", MORE_US_MAX, at_most=True)


def measure(quick: bool) -> Iterator[Figure]:
    # Ended from outside, it still takes servers and namespaces down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lacking = missing()
    if lacking:
        raise SystemExit(f"skipped: {lacking}")
    with (
        tempfile.TemporaryDirectory(prefix="hosts-") as folder,
        joined(None) as link,
        entered(link.server),
        both(link, Path(folder)) as servers,
    ):
        yield from measured(servers, quick)


if __name__ == "__main__":
    run("Two hosts", measure)
