"""TCP ports of a deployment: whether each can be had, and which process holds one that cannot."""

import errno
import os
import random
import socket
import sys
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from fermata.foundation.errors import ConfigError

PORTS = range(20_000, 32_000)
"""Above those of Ray's workers, below those that a system gives to whoever wants just any: a port
is looked for some seconds before it is bound, and others look for theirs meanwhile."""
LISTENING = "0A"
"""State of a socket in `/proc/net/tcp`."""
COMMAND_MAX = 80
"""Characters of a command line in a message."""
WILDCARDS = {"0.0.0.0", "::"}
WORKER, RAYLET = "ray::", "raylet "
"""How the command lines of Ray's processes begin."""
ENDING_S = 10.0
LOOK_S = 0.1

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens, and the section and option of the configuration that say so."""

    section: str
    option: str
    host: str
    port: int
    """0: a free one."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        return f"{self.section}.{self.option}"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket of this machine, of any process."""

    address: Address
    inode: int
    """Number of the socket; no other one has it."""
    uid: int
    """User of the process that made it."""


def grpc_endpoint(host: str, port: int) -> Endpoint:
    return Endpoint("frontend", "grpc_port", host, port)


def http_endpoint(host: str, port: int) -> Endpoint:
    return Endpoint("frontend", "http_port", host, port)


def free_port(host: str = "127.0.0.1", given: Container[int] = ()) -> int:
    """A port that nobody holds at the moment, and that is not among those `given`."""
    chance = random.SystemRandom()
    while True:
        port = chance.choice(PORTS)
        if port not in given and bind_error(grpc_endpoint(host, port)) is None:
            return port


def check_free(endpoint: Endpoint) -> None:
    """Raise a ConfigError where nobody could listen there, with the process that holds it."""
    end_s = time.monotonic() + ENDING_S
    while (error := bind_error(endpoint)) is not None:
        found = listeners(endpoint)
        if not any(map(_is_ending, found)) or time.monotonic() > end_s:
            raise refusal(endpoint, error, found)
        time.sleep(LOOK_S)


def bind_error(endpoint: Endpoint) -> OSError | None:
    """The error of a process that wants to listen there alone; None where it could."""
    failed: OSError | None = None
    free = False
    try:
        resolved = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return error
    for family, kind, protocol, _, address in resolved:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # Connections of a server that has just ended linger; they are no obstacle.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                # With SO_REUSEPORT the kernel would let us in beside others that have it.
                probe.bind(address)
            free = True
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return error
            failed = error
    # A name such as localhost may stand for an address family that this machine goes without.
    return None if free else failed


def refusal(endpoint: Endpoint, error: OSError, found: Sequence[Listener]) -> ConfigError:
    """The error in one line, with the option to change; `found` are the sockets in the way."""
    if error.errno == errno.EADDRINUSE:
        return _refused(endpoint, f"is taken by {holder(found)}: end it or")
    at_fault = endpoint.option if error.errno == errno.EACCES else "host"
    return _refused(endpoint, f"cannot be listened on ({error.strerror}):", at_fault)


def _refused(endpoint: Endpoint, reason: str, at_fault: str = "") -> ConfigError:
    remedy = f"set another {endpoint.section}.{at_fault or endpoint.option}"
    return ConfigError(f"{endpoint.name}={endpoint.port}: {endpoint} {reason} {remedy}")


def listeners(endpoint: Endpoint) -> list[Listener]:
    """Sockets that listen there; none on systems other than Linux, which do not tell."""
    try:
        resolved = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []
    wanted = [ip_address(address[0]) for *_, address in resolved]
    return [
        each
        for each in _listening(endpoint.port)
        if any(_overlap(each.address, one) for one in wanted)
    ]


def _listening(port: int) -> Iterator[Listener]:
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                address, _, number = fields[1].rpartition(":")
                if fields[3] == LISTENING and int(number, 16) == port:
                    yield Listener(_decoded(address), int(fields[9]), int(fields[7]))


def _decoded(text: str) -> Address:
    """An address as the kernel prints it, in words of four bytes."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    address = ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _overlap(one: Address, other: Address) -> bool:
    """Whether a connection could be meant for both; `::` takes those of IPv4 too."""
    return one == other or any(
        wild.is_unspecified and (wild.version == 6 or each.version == 4)
        for wild, each in ((one, other), (other, one))
    )


def holder(found: Sequence[Listener]) -> str:
    """The process of the first of these sockets, in words, as far as it can be told."""
    for listener in found:
        pid = _process_of(listener.inode)
        if pid is None:
            return f"a process of user {listener.uid}"
        with suppress(OSError):
            pid = _starter(pid)
            return f"process {pid} ({_command(pid)[:COMMAND_MAX]})"
    return "another process"


def _starter(pid: int) -> int:
    """The process that has started the Ray cluster of this one, where that is to be found: in place
    of a worker that is ended, Ray starts another."""
    above = pid
    while _command(above).startswith((WORKER, RAYLET)):
        above = _parent(above)
    return above if above > 1 else pid


def _is_ending(listener: Listener) -> bool:
    """Whether its process is a worker of Ray whose cluster is gone: it soon ends by itself, and a
    supervisor may start us before that."""
    pid = _process_of(listener.inode)
    if pid is None:
        # Of our own user it would have been found, had it not ended just now.
        return listener.uid == os.getuid()
    with suppress(OSError):
        is_worker = _command(pid).startswith(WORKER)
        return is_worker and not _command(_parent(pid)).startswith(RAYLET)
    return True


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> str:
    """Its command line, or the title that it has given itself."""
    program, *rest = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return " ".join((program.rpartition("/")[2], *rest)).strip()


def _process_of(inode: int) -> int | None:
    """A process that has this socket open; None where only its user may see that."""
    target = f"socket:[{inode}]"
    for folder in Path("/proc").glob("[0-9]*/fd"):
        # Processes end while they are looked at, and those of others do not show their files.
        with suppress(OSError):
            if any(_leads_to(file, target) for file in folder.iterdir()):
                return int(folder.parent.name)
    return None


def _leads_to(file: Path, target: str) -> bool:
    # Files are closed meanwhile: the list of our own is one that always is.
    with suppress(FileNotFoundError):
        return os.readlink(file) == target
    return False


@contextmanager
def held(ports: Sequence[Endpoint]) -> Iterator[None]:
    """Hold these ports against any other `fermata serve`; a ConfigError where one is taken.

    They are bound by processes that start seconds later, and Ray Serve's proxy binds its own in
    a way that lets a second one in. So an abstract Unix name is bound for each: only one process
    can have it, it lives in the network namespace as ports do, and it ends with the process.
    """
    with ExitStack() as names:
        for index, each in enumerate(ports):
            for other in ports[:index]:
                same = each.host == other.host or WILDCARDS & {each.host, other.host}
                if each.port == other.port and same:
                    raise _refused(each, f"is {other.name} as well:")
            check_free(each)
            if sys.platform == "linux":
                names.enter_context(_claim(each))
        yield


def _claim(endpoint: Endpoint) -> socket.socket:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0fermata-serve-{endpoint}")
    except OSError:
        name.close()
        raise _refused(endpoint, "is claimed by another `fermata serve`: end it or") from None
    return name
