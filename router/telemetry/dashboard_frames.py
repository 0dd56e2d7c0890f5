"""One second of a deployment as the page and `fermata top` show it, live or simulated."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from fermata.foundation.json_types import Json
from fermata.router.telemetry.snapshot import CameraSnapshot, LookSnapshot

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class ApplicationFrame:
    """Figures of one application. Totals are since the start, rates of the last second, shares and
    latencies of the last minute."""

    name: str
    slo_ms: float
    requests: int
    good: int
    bad: Mapping[str, int]
    """By reason; what the client took back itself is left out."""
    rps: float
    good_rps: float
    bad_rate: float
    p50_ms: float | None
    p99_ms: float | None
    mean_batch: float | None
    accuracy: float | None
    """To be expected of its answers; None where it is not known."""
    streams: int
    worst_stream_bad_rate: float
    variants: Mapping[str, float]
    """Share of requests that each serves."""
    promised_accuracy: float | None = None
    """None where the policy promises nothing."""
    promised_violation: float | None = None
    looks: LookSnapshot | None = None
    """None where nothing looks at its requests."""


@dataclass(frozen=True, slots=True)
class BatchFrame:
    """A batch on a backend; times in seconds on the frame's clock."""

    start_s: float
    end_s: float
    variant: str
    size: int
    deadline_s: float
    """The earliest of its requests'."""
    late: int
    """Requests that missed theirs."""


@dataclass(frozen=True, slots=True)
class BackendFrame:
    name: str
    sub_cluster: int
    kind: str
    state: str
    """`running`, `idle`, `draining`, or `spare of` another one."""
    models: tuple[str, ...]
    batches: tuple[BatchFrame, ...]
    """The last ones, in order."""
    gpu_used: float | None = None


@dataclass(frozen=True, slots=True)
class SubClusterFrame:
    backends: int
    idle: float
    demand: float | None
    """Backends needed with full batches, where that is known."""
    advised: int | None
    """Backends that the autoscaler wants; None without one."""
    reason: str = ""
    """Reason of the advice."""


@dataclass(frozen=True, slots=True)
class StageFrame:
    """One stage of a pipeline, in the last minute."""

    application: str
    open: int
    """Requests that wait, run, or whose results are being handed on."""
    rps: float
    mean_ms: float | None
    """From their coming to the end of their batch."""
    busy: float
    """Backends that it keeps busy; the stage with most of them is the bottleneck."""


@dataclass(frozen=True, slots=True)
class PipelineFrame:
    """One pipeline, in the last minute."""

    name: str
    slo_ms: float
    rps: float
    """Queries that have ended."""
    bad_rate: float | None
    wasted: float | None
    """Share of its backend time that was in vain."""
    stages: tuple[StageFrame, ...]


@dataclass(frozen=True, slots=True)
class DashboardFrame:
    """All there is to see at one time."""

    at_s: float
    title: str
    queued: int
    under_way: int
    """At backends."""
    applications: tuple[ApplicationFrame, ...]
    sub_clusters: tuple[SubClusterFrame, ...]
    backends: tuple[BackendFrame, ...]
    notes: Mapping[str, Json] = field(default_factory=dict)
    cameras: tuple[CameraSnapshot, ...] = ()
    """Those that miss most, of `cameras_seen`."""
    cameras_seen: int = 0
    pipelines: tuple[PipelineFrame, ...] = ()

    def to_json(self) -> str:
        return json.dumps(self, default=_fields, separators=(",", ":"))


def _fields(part: Any) -> dict[str, Json]:
    """Fields of one of these classes; `dataclasses.asdict` would copy all that is inside, too."""
    return {name: getattr(part, name) for name in part.__slots__}


def read_frame(given: Any) -> DashboardFrame:
    """The frame in a decoded document; a TypeError where the document is no frame."""
    frame = _read(DashboardFrame, given)
    return replace(
        frame,
        applications=tuple(
            replace(each, looks=_read_looks(each.looks))
            for each in _read_all(ApplicationFrame, frame.applications)
        ),
        sub_clusters=_read_all(SubClusterFrame, frame.sub_clusters),
        backends=tuple(
            replace(each, models=tuple(each.models), batches=_read_all(BatchFrame, each.batches))
            for each in _read_all(BackendFrame, frame.backends)
        ),
        cameras=_read_all(CameraSnapshot, frame.cameras),
        pipelines=tuple(
            replace(each, stages=_read_all(StageFrame, each.stages))
            for each in _read_all(PipelineFrame, frame.pipelines)
        ),
    )


def _read_looks(given: Any) -> LookSnapshot | None:
    if given is None:
        return None
    looks = _read(LookSnapshot, given)
    return replace(looks, frequencies={int(at): share for at, share in looks.frequencies.items()})


def _read_all(kind: type[Part], given: Iterable[Any]) -> tuple[Part, ...]:
    return tuple(_read(kind, each) for each in given)


def _read(kind: type[Part], given: Any) -> Part:
    """One part; fields that only a newer server knows are left out."""
    make: Callable[..., Part] = kind
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return make(**{name: value for name, value in dict(given).items() if name in names})


def write_frames(frames: Iterable[DashboardFrame], path: str) -> int:
    """Write one line each; returns their number."""
    count = 0
    with open(path, "w", encoding="utf-8") as out:
        for frame in frames:
            out.write(frame.to_json() + "\n")
            count += 1
    return count
