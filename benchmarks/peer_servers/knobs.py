"""What can be set on each peer, and the settings that are tried.

Times are shares of a model's SLO, so that one setting fits models of different speed.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

STREAM, UNARY, HTTP = "stream", "unary", "http"
SPREAD, SPLIT = "spread", "split"


@dataclass(frozen=True, slots=True)
class Knobs:
    """One configuration of a peer."""

    batch: float = 0.5
    """The largest batch runs in this share of the SLO."""
    wait: float = 0.02
    """A batch that is not full is held for this share of the SLO."""
    queue: float = 0.0
    """A request is refused when it has been queued for this share of the SLO; 0 for never. mosec
    counts the run too."""
    workers: int = 1
    """Of each model on each of its GPUs."""
    placement: str = SPREAD
    """`spread`: every model on every GPU; `split`: each model on one."""
    way: str = HTTP
    """How clients talk: HTTP, or with Triton a gRPC stream or unary calls."""
    api_servers: int = 1
    """LitServe's processes that take HTTP."""
    fast_queue: bool = False
    """LitServe's ZeroMQ in place of queues of multiprocessing."""

    def __str__(self) -> str:
        plain = {each.name: each.default for each in fields(Knobs)}
        always = ("batch", "wait", "queue")
        shown: dict[str, Any] = {
            name: value
            for name, value in asdict(self).items()
            if name in always or value != plain[name]
        }
        return ", ".join(f"{name} {value}" for name, value in shown.items())


def _grid(**values: tuple[Any, ...]) -> tuple[Knobs, ...]:
    """Every combination."""
    found: list[dict[str, Any]] = [{}]
    for name, each in values.items():
        found = [{**one, name: value} for one in found for value in each]
    return tuple(Knobs(**one) for one in found)


GRIDS: dict[str, dict[str, tuple[Knobs, ...]]] = {
    "one": {
        "triton": (
            *_grid(way=(STREAM,), batch=(0.42, 0.5, 0.6), queue=(0.0, 0.7)),
            *_grid(way=(STREAM,), wait=(0.1,), queue=(0.0, 0.7)),
            *_grid(way=(STREAM,), queue=(0.5, 0.6, 0.8)),
            *_grid(way=(STREAM,), batch=(0.42,), queue=(0.0, 0.7), workers=(2,)),
            *_grid(way=(HTTP,), queue=(0.0, 0.6, 0.7)),
            *_grid(way=(UNARY,), queue=(0.7,)),
        ),
        "mosec": (
            *_grid(batch=(0.42, 0.5, 0.6), queue=(0.0, 1.0)),
            *_grid(wait=(0.1, 0.2)),
            *_grid(queue=(0.9,)),
            *_grid(batch=(0.42, 0.5), workers=(2,)),
        ),
        "litserve": (
            *_grid(batch=(0.42, 0.5, 0.6), wait=(0.1, 0.2)),
            *_grid(wait=(0.1, 0.2), fast_queue=(True,)),
            *_grid(wait=(0.02, 0.3)),
            *_grid(wait=(0.1,), queue=(0.6,)),
            *_grid(wait=(0.1, 0.2), api_servers=(2,)),
            *_grid(batch=(0.42,), wait=(0.2,), workers=(2,)),
        ),
    },
    "eight": {
        "triton": (
            *_grid(placement=(SPREAD, SPLIT), batch=(0.7, 0.5, 0.35), queue=(0.6,)),
            *_grid(placement=(SPREAD, SPLIT), queue=(0.0,)),
            *_grid(placement=(SPREAD,), wait=(0.1,), queue=(0.6,)),
            *_grid(placement=(SPREAD,), batch=(0.7,), queue=(0.8,)),
            # A stream's answers keep the order of its requests, so models wait for one another.
            *_grid(way=(STREAM,), placement=(SPLIT,), queue=(0.6,)),
        ),
        "mosec": (
            *_grid(placement=(SPREAD, SPLIT), batch=(0.7, 0.5, 0.35)),
            *_grid(placement=(SPREAD,), batch=(0.7,), queue=(1.0,)),
            *_grid(placement=(SPREAD,), wait=(0.1,)),
        ),
        "litserve": (
            *_grid(placement=(SPREAD, SPLIT), batch=(0.7, 0.5, 0.35), wait=(0.02, 0.1)),
            *_grid(placement=(SPREAD,), wait=(0.05, 0.2)),
            *_grid(placement=(SPLIT,), wait=(0.1,), queue=(0.5,)),
            *_grid(placement=(SPLIT,), wait=(0.1,), fast_queue=(True,)),
            *_grid(placement=(SPLIT,), wait=(0.1,), api_servers=(2,)),
        ),
    },
}
"""What a sweep tries, for each scene and peer."""

BEST: dict[str, dict[str, Knobs]] = {
    "one": {
        "triton": Knobs(way=STREAM, queue=0.5),
        "mosec": Knobs(batch=0.42, queue=1.0),
        "litserve": Knobs(),
    },
    "eight": {
        "triton": Knobs(batch=0.7, queue=0.6),
        "mosec": Knobs(batch=0.7),
        "litserve": Knobs(batch=0.7),
    },
}
"""What runs without a sweep: what full sweeps found, but for LitServe with eight models, of which
only a part was swept."""
