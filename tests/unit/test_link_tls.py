"""TLS of links without a socket: who gets through, and what."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.certificates import Authority
from fermata.foundation.errors import ConfigError
from fermata.router.links.tls import LinkTls, TlsChannel, TlsChannelError


def tls(authority: Authority, name: str = "fermata", trusted: Authority | None = None) -> LinkTls:
    pair = authority.vouch(name)
    ca = (trusted or authority).file
    return LinkTls(str(pair.certificate), str(pair.key), str(ca))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def ours(authority: Authority) -> LinkTls:
    return tls(authority)


def talk(client: TlsChannel, server: TlsChannel, say: bytes = b"") -> tuple[bytes, bytes]:
    """Hand bytes to and fro until there are none: what the client heard, and the server."""
    heard = [b"", b""]
    to_server, to_client = client.wrap(say), server.wrap(say)
    while to_server or to_client:
        plain, reply = server.unwrap(to_server)
        heard[1] += plain
        to_client += reply
        plain, to_server = client.unwrap(to_client)
        heard[0] += plain
        to_client = b""
    return heard[0], heard[1]


def test_what_is_said_before_the_handshake_arrives_after_it(ours: LinkTls) -> None:
    client, server = ours.seal(False), ours.seal(True)
    said = bytes(range(256)) * 1000
    assert talk(client, server, said) == (said, said)
    assert client.made
    assert server.made
    sealed = client.wrap(b"once more")
    assert b"once more" not in sealed
    assert server.unwrap(sealed) == (b"once more", b"")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40_000), max_size=4), st.data())
def test_any_cut_of_the_stream_gives_the_same_bytes(
    ours: LinkTls, said: list[bytes], data: st.DataObject
) -> None:
    client, server = ours.seal(False), ours.seal(True)
    talk(client, server)
    stream = b"".join(client.wrap(each) for each in said)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    heard = b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        heard += server.unwrap(stream[start:end])[0]
    assert heard == b"".join(said)


def test_a_certificate_of_another_authority_is_refused_on_both_sides(
    authority: Authority, ours: LinkTls, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    with pytest.raises(TlsChannelError, match="certificate"):
        talk(ours.seal(False), tls(other).seal(True))
    # One that trusts us, and whom we do not trust.
    with pytest.raises(TlsChannelError, match="certificate"):
        talk(tls(other, trusted=authority).seal(False), ours.seal(True))


def test_whoever_was_refused_can_say_nothing_more(
    authority: Authority, ours: LinkTls, tmp_path: Path
) -> None:
    client = tls(Authority(tmp_path, "other"), trusted=authority).seal(False)
    server = ours.seal(True)
    _, reply = server.unwrap(client.wrap(b"hello"))
    _, finished = client.unwrap(reply)
    with pytest.raises(TlsChannelError) as refused:
        server.unwrap(finished)
    with pytest.raises(TlsChannelError):
        client.unwrap(refused.value.last)
    with pytest.raises(TlsChannelError):
        client.wrap(b"a heartbeat")


def test_another_name_of_the_same_authority_is_refused_on_both_sides(
    authority: Authority, ours: LinkTls
) -> None:
    camera = tls(authority, "camera")
    with pytest.raises(TlsChannelError, match=r"[Hh]ostname mismatch"):
        talk(ours.seal(False), camera.seal(True))
    with pytest.raises(TlsChannelError, match="not of 'fermata'"):
        talk(camera.seal(False), ours.seal(True))


@pytest.mark.parametrize(
    "said", [b"\0\0\0\4plain", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff"]
)
def test_whoever_speaks_no_tls_is_refused(ours: LinkTls, said: bytes) -> None:
    server = ours.seal(True)
    with pytest.raises(TlsChannelError):
        server.unwrap(said * 10_000)


def test_what_was_changed_on_its_way_is_not_heard(ours: LinkTls) -> None:
    client, server = ours.seal(False), ours.seal(True)
    talk(client, server)
    sealed = bytearray(client.wrap(b"grant"))
    sealed[-1] ^= 1
    with pytest.raises(TlsChannelError):
        server.unwrap(bytes(sealed))


@pytest.mark.parametrize("roles", [(), ("router",), ("frontend", "backend")])
def test_roles_of_a_certificate_are_known_on_both_sides(
    authority: Authority, ours: LinkTls, roles: tuple[str, ...]
) -> None:
    pair = authority.vouch("fermata", roles=roles)
    theirs = LinkTls(str(pair.certificate), str(pair.key), str(authority.file))
    for client, server in ((ours, theirs), (theirs, ours)):
        one, other = client.seal(False), server.seal(True)
        talk(one, other)
        assert one.roles == frozenset(roles if server is theirs else ())
        assert other.roles == frozenset(roles if client is theirs else ())


def test_another_names_role_is_none(authority: Authority) -> None:
    pair = authority.vouch("fermata", roles=("routers", "router-2", "camera"))
    theirs = LinkTls(str(pair.certificate), str(pair.key), str(authority.file))
    one, other = theirs.seal(False), theirs.seal(True)
    talk(one, other)
    assert one.roles == other.roles == frozenset()


def test_files_are_read_once_until_they_change(authority: Authority) -> None:
    pair = authority.vouch("changing")
    mine = LinkTls(str(pair.certificate), str(pair.key), str(authority.file), "changing")
    one, other = mine.seal(True), mine.seal(True)
    assert one._tls.context is other._tls.context
    authority.vouch("changing")
    assert mine.seal(True)._tls.context is not one._tls.context


def test_files_that_are_none_are_named(ours: LinkTls, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.crt"
    wrong.write_text("These are notes.\n")
    with pytest.raises(ConfigError, match=r"wrong\.crt"):
        LinkTls(str(wrong), ours.key_file, ours.ca_file).seal(True)
    with pytest.raises(ConfigError, match="/not/there"):
        LinkTls(ours.certificate_file, ours.key_file, "/not/there").seal(False)
