"""TLS towards clients and on links, with tokens beside it, at a real frontend."""

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

pytest.importorskip("uvicorn")

from stand_in import LINKS, Running, jpeg, options, wait_for
from test_access import ROBOTS, TENANTS

from benchmarks.certificates import Authority, Pair
from fermata.clients.access import Access
from fermata.clients.describe import describe
from fermata.clients.load.arrivals import single
from fermata.clients.load.run import run_load
from fermata.clients.load.sender import SenderOptions, Target
from fermata.clients.stream import FrameStream, StreamOptions
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import RefusedError
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import from_array
from fermata.deployments.specs.frontend import ConnectionLimits, ServerOptions
from fermata.deployments.specs.tls import ServerTls
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms

pytestmark = pytest.mark.live

MOST = 40
"""Connections from one address."""


class Site:
    """A frontend with TLS, and what its clients need."""

    def __init__(self, folder: Path, mutual: bool) -> None:
        self.authority = Authority(folder)
        server = self.authority.vouch("localhost")
        own = self.authority.vouch("camera")
        token = folder / "token"
        token.write_text(ROBOTS)
        tls = ServerTls(
            str(server.certificate), str(server.key), str(self.authority.file) if mutual else ""
        )
        ports = ServerOptions(
            grpc_port=0,
            http_port=0,
            drain_ns=ms(500),
            tls=tls,
            connections=ConnectionLimits(per_address_max=MOST),
        )
        self.running = Running(lambda: options(server=ports, tenants=TENANTS))
        self.token = str(token)
        self.access = self.known(own if mutual else None)
        self.other = self.known(None)

    def known(self, own: Pair | None, ca: Path | None = None) -> Access:
        files = (str(own.certificate), str(own.key)) if own else ("", "")
        return Access(self.token, "", str(ca or self.authority.file), *files)


@pytest.fixture(scope="module", params=[False, True], ids=["tls", "mtls"])
def site(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Site]:
    one = Site(tmp_path_factory.mktemp("site"), request.param)
    yield one
    one.running.close()


def test_every_client_of_ours_speaks_tls(site: Site) -> None:
    target = site.running.target
    assert describe(target, "sum", site.access).shape == (1, 4)
    how = StreamOptions(slo_ns=2 * 10**9, access=site.access)
    assert [each.status for each in FrameStream(target, "picture", [jpeg()] * 4, how)] == ["OK"] * 4
    tensor = from_array("input", np.arange(4, dtype=np.float32))
    for unary in (False, True):
        due = single(np.arange(40, dtype=np.int64) * 5_000_000)
        sending = SenderOptions(target, 2, unary, site.access)
        sent = run_load(sending, [Target("sum", tensor, 2 * 10**9)], due)
        assert [sent.outcomes[each] for each in sent.outcome] == ["OK"] * 40


def test_http_speaks_it_too(site: Site) -> None:
    url = site.running.url.replace("http:", "https:")
    asked = urllib.request.Request(f"{url}/v2/models/sum", headers=dict(site.access.headers()))
    with urllib.request.urlopen(asked, context=site.access.context()) as answer:
        assert json.loads(answer.read())["name"] == "sum"
    with pytest.raises((ConnectionError, http.client.BadStatusLine)):
        urllib.request.urlopen(site.running.url + "/v2/health/live")


def test_handshakes_over_http_are_counted_by_address(site: Site) -> None:
    """Connections that never begin to shake hands, and one that does from elsewhere."""
    server = site.running.frontend.server
    before = server.gate.refused
    with ExitStack() as inside:
        for _ in range(MOST + 3):
            place = ("127.0.0.1", server.http_port)
            inside.enter_context(socket.create_connection(place, 10, ("127.0.0.8", 0)))
        wait_for(lambda: server.gate.refused >= before + 3)
        test_http_speaks_it_too(site)


def test_a_certificate_is_no_token(site: Site) -> None:
    with (
        site.access.channel(site.running.target) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        InferenceStub(channel).ServerMetadata(pb.ServerMetadataRequest())
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_servers_and_clients_of_others_are_refused(site: Site, tmp_path: Path) -> None:
    target = site.running.target
    strange = Authority(tmp_path, "strange")
    with pytest.raises(RefusedError, match="no server answers"):
        describe(target, "sum", Access(site.token))
    with pytest.raises(RefusedError, match="no server answers"):
        describe(target, "sum", site.known(None, strange.file))
    if site.access == site.other:
        return
    # It asks for a certificate: no token helps without one, nor one of somebody else's.
    for access in (site.other, site.known(strange.vouch("camera"))):
        with pytest.raises(RefusedError):
            describe(target, "sum", access)
        url = site.running.url.replace("http:", "https:")
        with pytest.raises((ssl.SSLError, urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(f"{url}/v2/health/live", context=access.context())


def test_a_certificate_is_replaced_under_way(tmp_path: Path) -> None:
    site = Site(tmp_path, mutual=False)
    describe(site.running.target, "sum", site.access)
    # Another authority vouches for the server now, in the same files.
    later = Authority(tmp_path, "later")
    later.vouch("localhost")
    renewed = site.known(None, later.file)
    describe(site.running.target, "sum", renewed)
    health = site.running.url.replace("http:", "https:") + "/v2/health/live"
    # The first handshake notices.
    with suppress(OSError):
        urllib.request.urlopen(health, context=renewed.context())
    assert urllib.request.urlopen(health, context=renewed.context()).status == 200
    with pytest.raises(RefusedError):
        describe(site.running.target, "sum", site.access)
    site.running.close()


def test_the_authority_of_clients_is_replaced_under_way(tmp_path: Path) -> None:
    site = Site(tmp_path, mutual=True)
    servers = tmp_path / "servers.crt"
    servers.write_bytes(site.authority.file.read_bytes())
    later = Authority(tmp_path, "later")
    old = site.known(site.authority.vouch("old"), servers)
    new = site.known(later.vouch("new"), servers)
    health = site.running.url.replace("http:", "https:") + "/v2/health/live"
    for known, other in ((old, new), (new, old)):
        assert urllib.request.urlopen(health, context=known.context()).status == 200
        assert describe(site.running.target, "sum", known).shape == (1, 4)
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(health, context=other.context())
        with pytest.raises(RefusedError):
            describe(site.running.target, "sum", other)
        site.authority.file.write_bytes(later.file.read_bytes())
    site.running.close()


def test_files_that_do_not_fit_are_refused_at_the_start(tmp_path: Path) -> None:
    one, other = (Authority(tmp_path, name).vouch(name) for name in ("one", "other"))
    tls = ServerTls(str(one.certificate), str(other.key))
    ports = ServerOptions(grpc_port=0, http_port=0, tls=tls)
    with pytest.raises(ConfigError, match=r"frontend\.tls"):
        Running(lambda: options(server=ports, links=LINKS))
