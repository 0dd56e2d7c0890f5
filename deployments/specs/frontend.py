"""Settings of a frontend process, as its configuration resolves them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fermata.deployments.specs.tls import ServerTls
from fermata.foundation.units import ms, seconds
from fermata.router.links.transport import LinkOptions

Edge = Literal["grpc", "native"]
"""The gRPC server: Python's own, or ours in C where it is built."""


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant as configured. Its tokens show in no repr."""

    name: str
    tokens: tuple[str, ...] = field(repr=False)
    applications: frozenset[str] = frozenset()
    """Applications that it may use; empty: all of them."""
    rate_rps: float | None = None
    burst: int = 32
    operator: bool = False


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Limits of a frontend's request table."""

    payload_bytes_max: int = 512 << 20
    requests_max: int = 100_000
    tenant_share: float = 3.0
    """A tenant holds at most so many times the memory that is free: alone three quarters of it."""
    slo_ns_max: int = seconds(600)
    hold_ns_max: int = seconds(10)
    """A request is planned to run within this, or its application's SLO if that is longer, however
    long its client would wait. It may still run later, if it has to."""
    grace_ns: int = ms(20)
    """A result this late is still handed on. Clients are promised an answer within 50 ms of the
    deadline; the difference is for an event loop that is late itself."""
    reply_ns: int = ms(1)
    """From a result's arrival here to the client; taken off every deadline, here and only here."""
    router_wait_ns: int = seconds(3)
    """A router away for less is expected back, so requests wait for it."""
    lent_ns: int = seconds(10)
    """A backend that has not answered by then reads no payload any more: it is gone."""
    stale_timers_min: int = 1024
    """Fewer timers of answered requests than this are not worth clearing."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of one client's stream."""

    in_flight_max: int = 256
    """Requests without an answer written. At the limit no more are read, and the client's own flow
    control holds it back. This also bounds the backlog of a client that does not read."""
    age_ns_max: int = seconds(600)
    """An older stream is ended with UNAVAILABLE, so that it may reconnect elsewhere."""
    leave_ns: int = seconds(1)
    """One that is to end does so with no request open, or reads no more after so long."""
    stall_ns_max: int = seconds(10)
    """A client that takes no answer for so long is cut."""
    idle_ns_max: int = seconds(120)
    """A stream without a request for so long, and without one open, is ended like an old one."""
    per_client_max: int = 1024
    """Streams that one tenant may have open here; without tenants, that one address may."""
    check_ns: int = seconds(1)
    """Interval between checks for idle and stalled streams."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on the connections of one process."""

    total_max: int = 4096
    """For gRPC, and as many for HTTP."""
    per_address_max: int = 1024
    """For gRPC, and as many for HTTP. Proxies have no such limit."""
    proxies: frozenset[str] = frozenset()
    """Addresses that stand for many clients, and are not limited as one."""
    idle_ns: int = seconds(120)
    """A gRPC connection without a call is closed then."""
    receive_ns: int = seconds(30)
    """From the first byte of a request to its last, and for handshakes."""
    unread_ns: int = seconds(5)
    """A gRPC client that does not read an answer for so long is cut."""
    head_bytes_max: int = 64 << 10
    """Path and headers of one HTTP request."""
    calls_per_connection_max: int = 256
    """Concurrent gRPC calls; a client that begins more has them wait on its own side."""
    calls_per_address_max: int = 16_384
    """Concurrent gRPC calls of one address; more are refused. Proxies have no such limit."""
    held_share: float = 0.25
    """Share of all bytes that connections may hold before they are taken, for one address; two
    messages at least. Proxies have no such limit."""
    calls_waiting_max: int = 4096
    """Calls that gRPC holds until they are taken; it cancels more of them, without a reason."""
    look_ns: int = ms(50)
    """Interval between looks at the gRPC connections; longer where these are thousands."""
    look_soon_ns: int = ms(20)
    """The same while much is held."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Addresses to listen on, and limits of the servers there."""

    host: str = "127.0.0.1"
    grpc_port: int = 8001
    """0 takes a free one."""
    http_port: int = 8080
    """0 takes a free one, -1 goes without HTTP."""
    reuse_port: bool = False
    """Several frontends share the ports; the kernel spreads connections over them."""
    deployment: str = ""
    """Frontends of the same deployment share ports, with nobody else."""
    message_bytes_max: int = 16 << 20
    tls: ServerTls | None = None
    """None: plain connections."""
    edge: Edge = "grpc"
    connection_age_ns_max: int = seconds(600)
    """Older connections are closed with GOAWAY, so that clients spread over new frontends."""
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    calls_max: int = 65_536
    """Concurrent gRPC calls on all connections; more are refused with RESOURCE_EXHAUSTED."""
    drain_ns: int = seconds(5)
    """Time for calls in flight at shutdown."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Sampling of requests for traces, and the file of their spans."""

    folder: Path
    share: float = 0.0
    """Share of the requests whose callers do not ask for a trace."""
    bytes_max: int = 256 << 20
    """Size at which a file starts anew; the one before is kept."""


@dataclass(frozen=True, slots=True)
class FrontendOptions:
    """All settings of one frontend process."""

    number: int
    """Unique in the cluster: part of every request's id."""
    link_host: str = "127.0.0.1"
    """Address that backends connect to; must be reachable from theirs."""
    node: str = ""
    """Processes with the same one share memory; found out if empty."""
    decoders: int = 2
    """Threads that decode pictures."""
    shared_memory: bool = True
    client_memory: bool = False
    """Clients of this machine may pass tensors in shared memory of their own."""
    repository_open: bool = False
    """Clients may load and unload models."""
    to_zero: bool = False
    """There may be no backend until a request comes."""
    pixels_max: int = 64_000_000
    tenants: tuple[TenantSpec, ...] = ()
    """Tenants that may send requests; empty: every client may."""
    traces: TraceOptions | None = None
    """None: no request is traced."""
    table: TableLimits = field(default_factory=TableLimits)
    streams: StreamLimits = field(default_factory=StreamLimits)
    server: ServerOptions = field(default_factory=ServerOptions)
    links: LinkOptions = field(default_factory=LinkOptions)
