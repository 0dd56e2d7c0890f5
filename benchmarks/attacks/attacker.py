"""An attacker: where it aims, from which addresses it comes, and raw HTTP/2 to do it with."""

import argparse
import http.client
import ipaddress
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fermata.clients.load.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    WINDOW_MAX,
    WINDOW_START,
    WINDOW_UPDATE,
    frame,
    literal,
)
from fermata.clients.wire.service import SERVICE

FRAME_BYTES = 16_384
HEAD = struct.Struct(">BHBBI")
"""Head of a frame: its length in three bytes, kind, flags and stream."""
WAIT_S = 1.0
"""Time for which a server may give no room."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The server under attack, and what an attacker knows of it."""

    grpc_port: int
    http_port: int
    model: str
    shape: tuple[int, ...]
    """Shape of its input, which is UINT8."""
    status_port: int = 0
    """Port of the control plane's page; 0: there is none."""
    link_ports: tuple[int, ...] = ()
    link_host: str = "127.0.0.1"
    host: str = "127.0.0.1"
    seconds_s: float = 10.0
    """How long the attack lasts."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Headers of every call, such as a token."""
    tls: bool = False
    """The ports of clients speak TLS."""

    def __post_init__(self) -> None:
        for host in (self.host, self.link_host):
            assert ipaddress.ip_address(host).is_loopback, "attacks stay on this machine"

    def until(self) -> Iterator[int]:
        """Rounds, counted, until the time is over."""
        end_s = time.monotonic() + self.seconds_s
        count = 0
        while time.monotonic() < end_s:
            yield count
            count += 1


def source(number: int) -> str:
    """An address of the loopback range that no honest client uses."""
    return f"127.66.{number // 250 % 250}.{1 + number % 250}"


def connect(aim: Aim, port: int, number: int = 0) -> socket.socket:
    """A connection from the attacker's address of this number."""
    host = aim.link_host if port in aim.link_ports else aim.host
    return socket.create_connection((host, port), 5, (source(number), 0))


def speak(aim: Aim, port: int, number: int = 0, protocol: str = "http/1.1") -> socket.socket:
    """A connection on which hands have been shaken, where that is asked for."""
    one = connect(aim, port, number)
    if not aim.tls or port == aim.status_port:
        return one
    context = ssl.create_default_context()
    # An attacker trusts anybody.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    return context.wrap_socket(one)


def web(aim: Aim, number: int = 0) -> http.client.HTTPConnection:
    """An HTTP client of the attacker's address of this number."""
    client = http.client.HTTPConnection(aim.host, aim.http_port, 10)
    client.sock = speak(aim, aim.http_port, number)
    return client


class Http2:
    """One connection on which anything can be said. It keeps to the windows of the server, which
    would close it otherwise, and reads answers only to forget them."""

    def __init__(self, aim: Aim, number: int = 0, window: int = WINDOW_MAX) -> None:
        """`window` is the bytes of each answer that the server may send."""
        self.aim = aim
        self.socket = speak(aim, aim.grpc_port, number, "h2")
        self.stream = 1
        self.heard = bytearray()
        self.room = WINDOW_START
        self.initial_room = WINDOW_START
        self.rooms: dict[int, int] = {}
        """Bytes that the server takes, in all and by stream."""
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
        self.send(PREFACE, frame(SETTINGS, 0, 0, settings))
        self.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW_MAX - WINDOW_START)))
        while not self.read():
            self._wait()

    def send(self, *parts: bytes) -> None:
        try:
            self.socket.sendall(b"".join(parts))
        except TimeoutError:
            raise ConnectionError("the server takes no more") from None

    def _wait(self) -> None:
        """Wait until the server has said something."""
        if not self._has_heard(WAIT_S):
            raise ConnectionError("the server gives no room")

    def _has_heard(self, wait_s: float) -> bool:
        # TLS takes in more than one asks it for.
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return True
        return bool(select.select([self.socket], [], [], wait_s)[0])

    def read(self) -> int:
        """Take in what has come; returns how many bytes."""
        total = 0
        while self._has_heard(0):
            heard = self.socket.recv(1 << 16)
            if not heard:
                raise ConnectionError("the server has closed the connection")
            total += len(heard)
            self.heard += heard
        at = 0
        while len(self.heard) - at >= HEAD.size:
            high, low, kind, flags, stream = HEAD.unpack_from(self.heard, at)
            end = at + HEAD.size + (high << 16) + low
            if end > len(self.heard):
                break
            self._on_frame(kind, flags, stream, bytes(self.heard[at + HEAD.size : end]))
            at = end
        del self.heard[:at]
        return total

    def _on_frame(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == WINDOW_UPDATE:
            more = int.from_bytes(body, "big")
            if stream == 0:
                self.room += more
            elif stream in self.rooms:
                self.rooms[stream] += more
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, body))
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(body), 6):
                name, value = struct.unpack_from(">HI", body, at)
                if name == INITIAL_WINDOW_SIZE:
                    grown = value - self.initial_room
                    self.rooms = {each: room + grown for each, room in self.rooms.items()}
                    self.initial_room = value
            self.send(frame(SETTINGS, ACK, 0, b""))
        elif (kind == HEADERS and flags & END_STREAM) or kind == RESET:
            self.rooms.pop(stream, None)
        elif kind == GOAWAY:
            raise ConnectionError("the server says goodbye")

    def begin(self, method: str, *, end: bool = False) -> int:
        """Open a call, and return the number of its stream."""
        stream = self.stream
        self.stream += 2
        headers = b"".join(
            literal(name, value)
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", f"/{SERVICE}/{method}"),
                (":authority", "attack"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                *self.aim.headers,
            )
        )
        flags = END_HEADERS | (END_STREAM if end else 0)
        if not end:
            self.rooms[stream] = self.initial_room
        self.send(frame(HEADERS, flags, stream, headers))
        self.read()
        return stream

    def data(self, stream: int, data: bytes, *, end: bool = False) -> bool:
        """Send a part of a message; False where the server has ended the call before."""
        at = 0
        while at < len(data):
            self.read()
            if stream not in self.rooms:
                return False
            size = min(FRAME_BYTES, len(data) - at, self.room, self.rooms[stream])
            if size <= 0:
                self._wait()
                continue
            last = end and at + size == len(data)
            self.send(frame(DATA, int(last), stream, data[at : at + size]))
            self.room -= size
            self.rooms[stream] -= size
            at += size
        return True

    def reset(self, stream: int) -> None:
        self.rooms.pop(stream, None)
        self.send(frame(RESET, 0, stream, struct.pack(">I", 8)))

    def close(self) -> None:
        self.socket.close()


def message(data: bytes) -> bytes:
    """A gRPC message as it stands in DATA frames."""
    return struct.pack(">BI", 0, len(data)) + data


def keep_trying(aim: Aim, attack: Callable[[int], None]) -> None:
    """Repeat an attack on new connections for as long as it lasts, whenever it is cut."""
    for count in aim.until():
        try:
            attack(count)
        except OSError:
            time.sleep(0.02)


def main(run: Callable[[Aim], None], about: str | None) -> None:
    """Run one attack by hand, against a server on this machine."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--http-port", type=int, default=8080)
    parser.add_argument("--status-port", type=int, default=0)
    parser.add_argument("--link-port", type=int, action="append", default=[])
    parser.add_argument("--model", default="emulated")
    parser.add_argument("--size", type=int, default=20_000, help="elements of the input")
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    run(
        Aim(
            given.grpc_port,
            given.http_port,
            given.model,
            (given.size,),
            given.status_port,
            tuple(given.link_port),
            seconds_s=given.seconds,
        )
    )
