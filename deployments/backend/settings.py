"""Identity and limits of a backend process."""

from dataclasses import dataclass, field

from fermata.deployments.backend.batch_pipeline import PipelineLimits
from fermata.foundation.units import seconds
from fermata.router.links.transport import LinkOptions


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """Identity and limits of one backend."""

    number: int
    """Unique among the backends of a router."""
    kind: str = "cpu"
    """Accelerator type."""
    node: str = ""
    """Frontends of the same node pass inputs in shared memory."""
    pipeline: PipelineLimits = field(default_factory=PipelineLimits)
    links: LinkOptions = field(default_factory=LinkOptions)
    hung_ns: int = seconds(10)
    """A batch that exceeds its plan by this much hangs: the process is to be replaced."""
    costs: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    """(variant, p50, p99 by batch size) of each variant measured here."""
    drain_check_s: float = 0.02
    """Interval between checks whether all batches have ended."""
    drain_answer_ns: int = seconds(5)
    """A router that has not answered a drain by then is not waited for."""
    drain_sequences_ns: int = seconds(15)
    """The same while sequences have a state here. Serve ends a replica after 20 s."""
    data_connections: bool = False
    """Whether large inputs of frontends on other nodes come by connections of their own, each with
    a thread."""
    frontends_max: int = 4096
    """Frontends whose addresses are kept."""
    reasons_max: int = 100
    """Reasons of failures counted apart; an error that quotes its input is new each time."""
