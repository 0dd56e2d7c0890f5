"""What TLS and tokens cost: goodput of a server with all of it against one without.

Two emulated backends as in `benchmarks.live`; with it, clients come in by TLS and with a token, and
links are TLS with certificates on both sides. The generator's own part of TLS is on the same cores.
"""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.certificates import Authority
from benchmarks.figures import Figure
from benchmarks.live_load import STREAMS, Sending, Way, by_stream, serves, watched
from benchmarks.live_server import EMULATED, Running, fermata
from benchmarks.search import highest
from fermata.clients.access import Access
from fermata.clients.load.sender import Sender, SenderOptions

GUESS_RPS = 1_100
CALM_RPS = 300
"""Where both serve with ease: for the CPU time of a request."""
LOSS_MAX = 0.2
PLAIN, SECURED = "without", "with TLS and token"


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


def cost(quick: bool) -> Iterator[Figure]:
    """Both servers are up, and are measured in turn, more than once: what else the machine does
    meets both, and what each does at its best is compared."""
    rounds, seconds_s, precision, probes = (2, 2.0, 0.08, 5) if quick else (3, 3.0, 0.03, 7)
    with plain() as without, secured() as both:
        servers = {PLAIN: without, SECURED: both}
        cpu_us = dict.fromkeys(servers, float("inf"))
        best = dict.fromkeys(servers, 0.0)
        for _ in range(rounds):
            for name, (server, way) in servers.items():
                spent = watched(server, CALM_RPS, 2.0, way).cpu_s
                cpu_us[name] = min(cpu_us[name], 1e6 * spent / CALM_RPS)
                good = serves(server, seconds_s, 1, way)
                best[name] = max(best[name], highest(good, GUESS_RPS, precision, probes))
    for name in servers:
        yield Figure(f"CPU time of a request, {name}", cpu_us[name], "us", 0)
        yield Figure(f"goodput, {name}", best[name], "req/s", 0)
    assert min(best.values()) > 0, f"nothing was served here: {best}"
    loss = 1 - best[SECURED] / best[PLAIN]
    yield Figure("TLS and token: goodput lost", 100 * loss, "%", 100 * LOSS_MAX, at_most=True)
    # Where cores are the limit a request that takes more of them is one that others do not get; CPU
    # time is the same on a busy machine, and goodput is not.
    loss = 1 - cpu_us[PLAIN] / cpu_us[SECURED]
    name = "TLS and token: goodput lost, by the CPU time of a request"
    yield Figure(name, 100 * loss, "%", 100 * LOSS_MAX, at_most=True)
