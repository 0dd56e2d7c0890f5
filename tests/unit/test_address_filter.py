"""Addresses that the kernel keeps from connecting, on sockets of the loopback network."""

import random
import socket
import sys
from collections.abc import Iterator

import pytest

from fermata.deployments.frontend.access.address_filter import (
    ADDRESSES_MAX,
    INSTRUCTION,
    AddressFilter,
    program,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a filter of Linux")
OTHERS = ("2001:db8::1", "10.0.0.1", "2001:db8::2", "::2")


@pytest.fixture(params=["127.0.0.1", "::"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """One for IPv4 alone, and one for both."""
    host: str = request.param
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.bind((host, 0))
        one.listen(64)
        yield one


def connects(listener: socket.socket, source: str) -> bool:
    port = listener.getsockname()[1]
    host = "::1" if ":" in source else "127.0.0.1"
    try:
        socket.create_connection((host, port), 0.05, (source, 0)).close()
        return True
    except TimeoutError:
        return False


def test_those_kept_out_do_not_connect_and_all_others_do(listener: socket.socket) -> None:
    kept, fds = AddressFilter(), [listener.fileno()]
    kept.keep_out({"127.66.0.1", "127.66.0.3", "no address", *OTHERS}, fds)
    connected = [connects(listener, f"127.66.0.{number}") for number in range(1, 5)]
    assert connected == [False, True, False, True]
    kept.keep_out({"127.66.0.3"}, fds)
    assert connects(listener, "127.66.0.1")
    assert not connects(listener, "127.66.0.3")
    kept.keep_out((), fds)
    assert connects(listener, "127.66.0.3")


@pytest.mark.parametrize("listener", ["::"], indirect=True)
def test_addresses_of_version_6_are_kept_out_too(listener: socket.socket) -> None:
    kept, fds = AddressFilter(), [listener.fileno()]
    kept.keep_out({"::2", "127.66.0.1"}, fds)
    assert connects(listener, "::1")
    kept.keep_out({*OTHERS, "::1"}, fds)
    assert not connects(listener, "::1")
    assert connects(listener, "127.66.0.1")


def test_open_connections_stay(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), 1, ("127.66.0.1", 0)) as one:
        other = listener.accept()[0]
        AddressFilter().keep_out({"127.66.0.1"}, [listener.fileno()])
        one.sendall(b"still here")
        assert other.recv(100) == b"still here"
        other.close()


def test_as_many_as_the_kernel_takes_are_kept_out(listener: socket.socket) -> None:
    draw = random.Random(1)
    many = {f"10.{draw.randrange(256)}.{draw.randrange(256)}.1" for _ in range(9000)}
    many |= {f"2001:db8::{draw.randrange(1 << 16):x}" for _ in range(9000)}
    assert len(program(many)) // INSTRUCTION.size <= 4096
    kept = AddressFilter()
    kept.keep_out({*list(many)[: ADDRESSES_MAX - 1], "127.66.0.1"}, [listener.fileno()])
    assert connects(listener, "127.66.0.2")


def test_a_socket_that_is_gone_is_no_harm() -> None:
    one = socket.socket()
    one.close()
    AddressFilter().keep_out({"127.66.0.1"}, [9999])
