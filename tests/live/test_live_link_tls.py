"""Links over TLS on real sockets: the same frames, for those who may."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_link_transport import Recorder, greet, send_large_frames, stay_busy
from test_links import HOST, run

from benchmarks.certificates import Authority
from fermata.foundation.units import ms
from fermata.router.links.connecting import connect
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.session import LinkError
from fermata.router.links.tls import LinkTls
from fermata.router.links.transport import Link, LinkOptions, LinkServer

pytestmark = pytest.mark.live


SECRET = b"a secret of this test"


def options(authority: Authority, name: str = "fermata", *roles: str) -> LinkOptions:
    pair = authority.vouch(name, roles=roles)
    tls = LinkTls(str(pair.certificate), str(pair.key), str(authority.file))
    return LinkOptions(silence_ns=ms(400), tls=tls, secret=SECRET)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> LinkOptions:
    return options(Authority(tmp_path_factory.mktemp("links")))


def test_large_frames_and_heartbeats_of_a_thread_keep_their_order(sealed: LinkOptions) -> None:
    run(lambda: send_large_frames(replace(sealed, silence_ns=ms(5000))))


def test_a_busy_loop_is_not_taken_for_dead(sealed: LinkOptions) -> None:
    run(lambda: stay_busy(sealed))


def test_others_do_not_get_a_link(sealed: LinkOptions, tmp_path: Path) -> None:
    async def test() -> None:
        heartbeat, events = HeartbeatThread(sealed.beat_ns), Recorder()
        server = LinkServer(greet("router"), events, heartbeat, sealed)
        plain = LinkServer(greet("router"), Recorder(), heartbeat, replace(sealed, tls=None))
        ports = await server.start(HOST), await plain.start(HOST)

        async def knock(port: int, how: LinkOptions) -> None:
            await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heartbeat, how)

        for port, how in (
            (ports[0], options(Authority(tmp_path, "other"))),
            (ports[0], replace(sealed, tls=None)),
            (ports[1], sealed),
        ):
            with pytest.raises(LinkError):
                await knock(port, how)
        assert events.up == []
        await server.stop("done")
        await plain.stop("done")
        heartbeat.stop()

    run(test)


def test_certificates_may_be_replaced_while_links_live(tmp_path: Path) -> None:
    async def test() -> None:
        authority = Authority(tmp_path)
        how = options(authority)
        heartbeat, events = HeartbeatThread(how.beat_ns), Recorder()
        server = LinkServer(greet("router"), events, heartbeat, how)
        port = await server.start(HOST)
        first = await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heartbeat, how)
        authority.vouch("fermata")
        second = await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heartbeat, how)
        assert first.open
        assert second.open
        await server.stop("done")
        heartbeat.stop()

    run(test)


def test_a_certificate_alone_is_no_proof_and_one_of_a_role_speaks_for_it_alone(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        authority = Authority(tmp_path)
        router, backend = (options(authority, "fermata", role) for role in ("router", "backend"))
        any_role = options(authority)
        heartbeat, events = HeartbeatThread(router.beat_ns), Recorder()
        servers = [LinkServer(greet("router"), events, heartbeat, how) for how in (router, backend)]
        for server in servers:
            await server.start(HOST)

        async def link(server: LinkServer, role: str, how: LinkOptions) -> Link:
            return await connect(server.address, greet(role), Recorder(), heartbeat, how)

        for how in (backend, any_role):
            assert (await link(servers[0], "backend", how)).open
        for server, role, how, why in (
            (servers[0], "backend", replace(backend, secret=b""), "the secret of one deployment"),
            (servers[0], "frontend", backend, "a certificate for backend alone"),
            (servers[0], "standby", backend, "a certificate for backend alone"),
            # A backend's certificate where a router should be.
            (servers[1], "backend", any_role, "a certificate for backend alone"),
        ):
            with pytest.raises(LinkError, match=why):
                await link(server, role, how)
        for server in servers:
            await server.stop("done")
        heartbeat.stop()

    run(test)
