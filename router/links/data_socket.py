"""Data connections: inputs between hosts, beside the link of a backend to a frontend.

On a link, an input is copied a dozen times between buffers, on the event loops of both ends. Here a
thread of each end has a blocking socket. The frontend's writes from the memory where an input lies,
and the backend's reads into the memory that the model reads. TLS takes no copy that it can do
without, and runs outside of Python.

The handshake is that of links, with the same proofs and certificates, and covers the address that
was dialled. After it inputs alone go over the connection, from the end that was dialled to the
other one. A frame is four bytes of length, a msgpack list of `Payload` without data, and the data
of each.

The end of a data connection loses nothing: a backend then fetches over the link what it waits for.
"""

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import numpy as np

from fermata.foundation.errors import ServingError
from fermata.foundation.units import SECOND
from fermata.router.links.address import split_address
from fermata.router.links.handshake import NONCE_BYTES, Acceptor, Connector, Handshake
from fermata.router.links.heartbeat import Clock
from fermata.router.links.messages import Hello, Payload
from fermata.router.links.session import PREFIX, Session
from fermata.router.links.transport import LinkOptions

FRAME_PAYLOADS = 16
"""Inputs of one frame, at most."""
PART_BYTES = 1 << 18
"""A peer has to take so much within the silence that links allow."""
PROBES = 2
"""Times of that silence without a word from the peer's kernel until a connection is dead."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Payload])


class DataError(ServingError):
    """A data connection is of no use."""


class DataSocket:
    """One end of a data connection whose peer has proven itself; for one thread."""

    def __init__(self, connection: socket.socket, options: LinkOptions) -> None:
        self.connection = connection
        self.options = options
        self.head_bytes_max = FRAME_PAYLOADS * options.head_bytes

    def send(self, payloads: Sequence[Payload], views: Sequence[memoryview]) -> None:
        """Send inputs, each with its data apart; TimeoutError where the peer does not read."""
        for at in range(0, len(payloads), FRAME_PAYLOADS):
            some = slice(at, at + FRAME_PAYLOADS)
            head = _encoder.encode(payloads[some])
            self.write(len(head).to_bytes(PREFIX, "big") + head)
            for view in views[some]:
                for start in range(0, len(view), PART_BYTES):
                    self.write(view[start : start + PART_BYTES])

    def write(self, data: bytes | memoryview) -> None:
        self.connection.sendall(data)

    def receive(self) -> list[Payload]:
        """The inputs of the next frame; DataError at the end."""
        length = int.from_bytes(self._read(PREFIX), "big")
        if length > self.head_bytes_max:
            raise DataError(f"a head of {length} bytes is over the limit of {self.head_bytes_max}")
        try:
            heads = _decoder.decode(self._read(length))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DataError(f"a frame cannot be read: {error}") from None
        return [self._with_data(head) for head in heads]

    def _with_data(self, head: Payload) -> Payload:
        size, most = head.length, self.options.data_bytes_max
        if head.segment or not 0 <= size <= most:
            raise DataError(f"an input of {size} bytes, and {most} is the limit")
        # Read only, as inputs are that came over a link.
        data = self._read(size).toreadonly()
        return msgspec.structs.replace(head, data=data, length=0)

    def _read(self, size: int) -> memoryview:
        """So many bytes, in memory that nobody has filled with zeros before."""
        view = np.empty(size, np.uint8).data
        at = 0
        while at < size:
            count = self.connection.recv_into(view[at:])
            if not count:
                raise DataError("end of file")
            at += count
        return view

    def cut(self) -> None:
        """End the connection, from any thread: the one that uses it is woken."""
        cut(self.connection)

    def close(self) -> None:
        self.connection.close()


def has_started(thread: threading.Thread) -> bool:
    """Start a thread; false where the process may have no more of them."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def cut(connection: socket.socket) -> None:
    """Have both ends of a connection read its end."""
    with suppress(OSError):
        # Not the method of a socket with TLS, which would have another thread go on without.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def dial(
    address: str, me: Hello, options: LinkOptions, clock: Clock, keep: Callable[[DataSocket], None]
) -> tuple[DataSocket, bytes]:
    """A connection to a frontend, and its nonce, by which to ask for inputs.

    `keep` is given the connection as soon as there is one, so that it can be cut. Raises DataError,
    ConfigError or OSError.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    until_ns = clock() + options.connect_ns
    connection = socket.create_connection(split_address(address), options.connect_ns / 1e9)
    _notice_death(connection, options)
    data = DataSocket(connection, options)
    keep(data)
    try:
        _shake(data, Connector(me, options.secret, nonce, address), clock, until_ns)
        # Inputs come when there are any; the link tells whether the peer lives.
        data.connection.settimeout(None)
    except BaseException:
        data.close()
        raise
    return data, nonce


def welcome(
    data: DataSocket,
    me: Hello,
    address: str,
    clock: Clock,
    admit: Callable[[Hello], bool],
) -> Hello:
    """Have a peer prove itself that has dialled this address; `admit` is asked once it has. Raises
    DataError, ConfigError or OSError."""
    options = data.options
    nonce = secrets.token_bytes(NONCE_BYTES)
    data.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _notice_death(data.connection, options)
    data.connection.settimeout(options.handshake_ns / 1e9)
    handshake = Acceptor(me, options.secret, nonce, address, options.speaks)
    peer = _shake(data, handshake, clock, clock() + options.handshake_ns, admit)
    data.connection.settimeout(options.silence_ns / 1e9)
    return peer


def _notice_death(connection: socket.socket, options: LinkOptions) -> None:
    """Have the kernel end a connection whose packets vanish, though the link beside it lives: a
    firewall may forget it alone."""
    silence_s = max(1, round(options.silence_ns / SECOND))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", silence_s),
        ("TCP_KEEPINTVL", silence_s),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", 1000 * PROBES * silence_s),
    ):
        # Linux has all of them.
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _shake(
    data: DataSocket,
    handshake: Handshake,
    clock: Clock,
    until_ns: int,
    admit: Callable[[Hello], bool] = lambda peer: True,
) -> Hello:
    options = data.options
    if options.tls is not None:
        data.connection = wrapped = options.tls.wrap(data.connection, handshake.accepts)
        handshake.roles = options.tls.shake(wrapped)
    session = Session(handshake, clock(), options)
    data.connection.sendall(session.greeting())
    while session.peer is None:
        left_ns = until_ns - clock()
        if left_ns <= 0:
            raise DataError("no proof in time")
        data.connection.settimeout(left_ns / 1e9)
        heard = data.connection.recv(options.handshake_bytes_max)
        if not heard:
            raise DataError("end of file in the handshake")
        session.receive(clock(), heard)
        if session.closed is not None:
            raise DataError(str(session.closed))
        # Before the reply: a peer that has it may ask for inputs at once.
        if session.peer is not None and not admit(session.peer):
            raise DataError("no link to this peer")
        data.connection.sendall(session.take_reply())
    return session.peer
