"""What TLS and tokens cost: goodput of one server with all of it against the same without.

Two emulated backends as in `benchmarks.live`; with it, clients come in by TLS and with a token, and
links are TLS with certificates on both sides. The generator's own part of TLS is on the same cores.
"""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.certificates import Authority
from benchmarks.figures import Figure
from benchmarks.live_load import STREAMS, Sending, Way, by_stream, serves, watched
from benchmarks.live_server import EMULATED, Running, fermata
from benchmarks.search import highest
from clients.access import Access
from clients.load.sender import Sender, SenderOptions

GUESS_RPS = 1_100
CALM_RPS = 600
"""Where both serve with ease: for the CPU time of a request."""
LOSS_MAX = 0.2


@contextmanager
def secured() -> Iterator[tuple[Running, Way]]:
    """A server with everything on, and how to get in."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority, links = Authority(folder, "ca"), Authority(folder, "links-ca")
        server, peer = authority.vouch("server"), links.vouch("fermata")
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        access = Access(token_file=str(token), ca_file=str(authority.file))

        def way(running: Running) -> Sending:
            return SenderOptions(running.address, STREAMS, access=access), Sender

        link_tls = {
            "certificate_file": str(peer.certificate),
            "key_file": str(peer.key),
            "ca_file": str(links.file),
        }
        front_tls = {"certificate_file": str(server.certificate), "key_file": str(server.key)}
        tenants = [
            {"name": "cameras", "token_file": str(token), "applications": [EMULATED["name"]]}
        ]
        with fermata(
            frontend={"tls": front_tls}, links={"tls": link_tls}, tenants=tenants
        ) as running:
            yield running, way


@contextmanager
def plain() -> Iterator[tuple[Running, Way]]:
    with fermata() as running:
        yield running, by_stream


def goodput_rps(server: Running, way: Way, quick: bool) -> float:
    seconds_s, precision, tries = (3.0, 0.05, 1) if quick else (6.0, 0.03, 2)
    return highest(serves(server, seconds_s, tries, way), GUESS_RPS, precision, probes=8)


def cost(quick: bool) -> Iterator[Figure]:
    """One after the other, twice unless quick: what each does at its best is compared."""
    best, cpu_us = {"plain": 0.0, "secured": 0.0}, {"plain": 0.0, "secured": 0.0}
    kinds: dict[str, Any] = {"plain": plain, "secured": secured}
    for _ in range(1 if quick else 2):
        for name, start in kinds.items():
            with start() as (server, way):
                spent = watched(server, CALM_RPS, 3.0, way).cpu_s
                cpu_us[name] = 1e6 * spent / CALM_RPS
                best[name] = max(best[name], goodput_rps(server, way, quick))
    for name in kinds:
        yield Figure(f"goodput, {name}", best[name], "req/s", 0)
        yield Figure(f"CPU time of a request, {name}", cpu_us[name], "us", 0)
    loss = 1 - best["secured"] / best["plain"]
    yield Figure("TLS and token: goodput lost", 100 * loss, "%", 100 * LOSS_MAX, at_most=True)
