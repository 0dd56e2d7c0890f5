"""Links over TLS on real sockets: the same frames, for those who may."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_link_transport import Recorder, greet, send_large_frames, stay_busy
from test_links import HOST, run

from benchmarks.certificates import Authority
from router.core.units import ms
from router.links.heart import Heart
from router.links.session import LinkError
from router.links.tls import LinkTls
from router.links.transport import LinkOptions, LinkServer, connect

pytestmark = pytest.mark.live


def options(authority: Authority, name: str = "fermata") -> LinkOptions:
    pair = authority.vouch(name)
    tls = LinkTls(str(pair.certificate), str(pair.key), str(authority.file))
    return LinkOptions(silence_ns=ms(400), tls=tls)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> LinkOptions:
    return options(Authority(tmp_path_factory.mktemp("links")))


def test_large_frames_and_heartbeats_of_a_thread_keep_their_order(sealed: LinkOptions) -> None:
    run(lambda: send_large_frames(replace(sealed, silence_ns=ms(5000))))


def test_a_busy_loop_is_not_taken_for_dead(sealed: LinkOptions) -> None:
    run(lambda: stay_busy(sealed))


def test_others_do_not_get_a_link(sealed: LinkOptions, tmp_path: Path) -> None:
    async def test() -> None:
        heart, events = Heart(sealed.beat_ns), Recorder()
        server = LinkServer(greet("router"), events, heart, sealed)
        plain = LinkServer(greet("router"), Recorder(), heart, replace(sealed, tls=None))
        ports = await server.start(HOST), await plain.start(HOST)

        async def knock(port: int, how: LinkOptions) -> None:
            # A client knows only later that the server did not take its certificate.
            link = await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heart, how)
            raise LinkError(await link.ended)

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
        heart.stop()

    run(test)


def test_certificates_may_be_replaced_while_links_live(tmp_path: Path) -> None:
    async def test() -> None:
        authority = Authority(tmp_path)
        how = options(authority)
        heart, events = Heart(how.beat_ns), Recorder()
        server = LinkServer(greet("router"), events, heart, how)
        port = await server.start(HOST)
        first = await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heart, how)
        authority.vouch("fermata")
        second = await connect(f"{HOST}:{port}", greet("backend"), Recorder(), heart, how)
        assert first.open
        assert second.open
        await server.stop("done")
        heart.stop()

    run(test)
