"""Everything a frontend process is told."""

from dataclasses import dataclass, field

from fermata.deployments.frontend.access.tenants import TenantSpec
from fermata.deployments.frontend.protocol.server import ServerOptions
from fermata.deployments.frontend.protocol.streams import StreamLimits
from fermata.deployments.frontend.requests.table import TableLimits
from fermata.deployments.frontend.requests.trace_file import TraceOptions
from fermata.router.links.transport import LinkOptions


@dataclass(frozen=True, slots=True)
class FrontendOptions:
    """Everything a frontend process is told."""

    number: int
    """Unique in the cluster: part of every request's id."""
    link_host: str = "127.0.0.1"
    """Where backends connect to; must be reachable from theirs."""
    node: str = ""
    """Processes with the same one share memory; found out where empty."""
    decoders: int = 2
    """Threads that decode pictures."""
    shared_memory: bool = True
    repository_open: bool = False
    """Clients may load and unload models."""
    to_zero: bool = False
    """There may be no backend until a request comes."""
    pixels_max: int = 64_000_000
    tenants: tuple[TenantSpec, ...] = ()
    """Who may ask; empty: everybody."""
    traces: TraceOptions | None = None
    """Which requests are followed, and where to; None: none."""
    table: TableLimits = field(default_factory=TableLimits)
    streams: StreamLimits = field(default_factory=StreamLimits)
    server: ServerOptions = field(default_factory=ServerOptions)
    links: LinkOptions = field(default_factory=LinkOptions)
