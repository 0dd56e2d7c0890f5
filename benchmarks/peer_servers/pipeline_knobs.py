"""Settings of each peer that runs a pipeline of two stages, and those that are tried.

Times are shares of the pipeline's SLO.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

from benchmarks.peer_servers.knobs import HTTP, STREAM

ENSEMBLE, BLS, SERVE = "triton-ensemble", "triton-bls", "ray-serve"
Two = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PipelineKnobs:
    """One configuration of a peer; pairs are of the first stage and the second."""

    batches: tuple[int, int]
    """Largest batches."""
    gpus: tuple[int, int] = (0, 0)
    """GPUs of each stage; zeros where both run on all of them."""
    waits: Two = (0.0, 0.0)
    """A batch that is not full is held for so long."""
    queues: Two = (0.0, 0.0)
    """Triton: a request is refused when a stage has queued it for so long; 0 for never."""
    deadlines: Two = (0.0, 0.0)
    """BLS and Ray Serve: a stage is given up this long after the query came; 0 for never."""
    preferred: tuple[int, int] = (0, 0)
    """Triton: batch sizes that need not be held any longer; 0 for none."""
    limiter: bool = False
    """Triton: its rate limiter hands out GPUs, the second stage before the first."""
    together: bool = True
    """A frame's crops are one call of several rows, else a call each."""
    scripts: int = 1
    """Processes that run the BLS or Ray Serve's outer deployment."""
    ongoing: int = 1000
    """Ray Serve: calls that a replica takes before others wait where they come from."""
    optimized: bool = False
    """Ray Serve's own switch for throughput."""
    way: str = STREAM
    """How clients talk."""

    def __str__(self) -> str:
        plain = {each.name: each.default for each in fields(PipelineKnobs)}
        shown: dict[str, Any] = {
            name: value
            for name, value in asdict(self).items()
            if name in ("batches", "gpus") or value != plain[name]
        }
        return ", ".join(f"{name} {_shown(value)}" for name, value in shown.items())


def _shown(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


Steps = tuple[tuple[str, tuple[Any, ...]], ...]
"""Knobs in the order in which they are turned, and what each is tried at."""

_LONG: Two = (1.0, 1.0)
"""Triton makes up batches ahead of time unless requests may time out, and these stay small."""
_HELD: Two = (0.02, 0.02)
FIRST: dict[str, dict[str, PipelineKnobs]] = {
    "A": {
        BLS: PipelineKnobs((12, 64), (2, 2), _HELD, _LONG),
        SERVE: PipelineKnobs((12, 64), (2, 2), (0.2, 0.1)),
    },
    "C": {
        ENSEMBLE: PipelineKnobs((16, 16), (1, 1), _HELD, _LONG),
        BLS: PipelineKnobs((16, 16), (1, 1), _HELD, _LONG),
        SERVE: PipelineKnobs((16, 16), (1, 1), (0.15, 0.15)),
    },
}
"""From where a sweep starts."""

_SPLITS = {"A": ((0, 0), (3, 1)), "C": ((0, 0),)}
_BATCHES = {
    "A": ((8, 48), (16, 96)),
    "C": ((10, 10), (25, 25)),
}
_WAITS: tuple[Two, ...] = ((0.0, 0.0), (0.1, 0.1))
_SERVE_WAITS: tuple[Two, ...] = ((0.1, 0.1), (0.2, 0.2), (0.02, 0.02))
"""Ray Serve closes a batch after so long, be its GPU busy or not: shorter ones pile up."""
_QUEUES: tuple[Two, ...] = ((0.0, 0.0), (0.6, 0.6))
_DEADLINES: tuple[Two, ...] = ((0.5, 0.8), (0.7, 1.0))


def steps_of(scene: str, peer: str) -> Steps:
    """Settings that a sweep tries, each from the best so far."""
    shared: Steps = (("gpus", _SPLITS[scene]), ("batches", _BATCHES[scene]))
    waits: Steps = (("waits", _SERVE_WAITS if peer == SERVE else _WAITS),)
    crops: Steps = (("together", (False,)),) if scene == "A" else ()
    preferred = ("preferred", ((8, 32),) if scene == "A" else ((8, 8),))
    limited: Steps = (("limiter", (True,)), ("queues", _QUEUES))
    if peer == ENSEMBLE:
        own: Steps = (*limited, ("way", (HTTP,)), preferred)
    elif peer == BLS:
        own = (*limited, *crops, ("deadlines", _DEADLINES), ("scripts", (2,)), preferred)
    else:
        own = (
            ("optimized", (True,)),
            *crops,
            ("ongoing", (32,)),
            ("deadlines", _DEADLINES),
            ("scripts", (2,)),
        )
    return (*waits, *shared, *own) if peer == SERVE else (*shared, *waits, *own)


BEST: dict[str, dict[str, PipelineKnobs]] = {
    "A": {
        BLS: PipelineKnobs((8, 48), (2, 2), _HELD, _LONG),
        SERVE: FIRST["A"][SERVE],
    },
    "C": {
        ENSEMBLE: PipelineKnobs((25, 25), (1, 1), _HELD),
        BLS: PipelineKnobs((25, 25), (1, 1), _HELD, _LONG),
        SERVE: FIRST["C"][SERVE],
    },
}
"""Settings without a sweep: the best that were found. Only the ensemble's sweep was whole."""
