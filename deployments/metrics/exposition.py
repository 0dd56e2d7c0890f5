"""Prometheus' text format."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fermata.deployments.specs.status import DeploymentStatus
from fermata.router.telemetry.histogram import HistogramSnapshot

SECOND = 1e9
Labels = dict[str, str]
Sample = tuple[Labels, float]
Counts = tuple[Labels, HistogramSnapshot, float]
"""Labels, a histogram, and the unit of its values."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric: its name, its meaning, and how to read it from a snapshot."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    about: str
    labels: tuple[str, ...]
    read: Callable[[DeploymentStatus], Iterable[Sample] | Iterable[Counts]]

    @property
    def full_name(self) -> str:
        return f"fermata_{self.name}"


def exposition(families: Iterable[MetricFamily], status: DeploymentStatus) -> str:
    """Every figure with its help line."""
    lines: list[str] = []
    for family in families:
        name = family.full_name
        lines += [f"# HELP {name} {family.about}", f"# TYPE {name} {family.kind}"]
        for sample in family.read(status):
            if len(sample) == 3:
                lines += _histogram(name, *sample)
            else:
                labels, value = sample
                lines.append(f"{name}{_shown(labels)} {_number(value)}")
    return "\n".join(lines) + "\n"


def _histogram(name: str, labels: Labels, told: HistogramSnapshot, unit: float) -> Iterator[str]:
    below = 0
    for bound, count in zip(told.bounds, told.counts, strict=False):
        below += count
        at_most = {**labels, "le": _number(bound / unit)}
        yield f"{name}_bucket{_shown(at_most)} {below}"
    below += told.counts[-1]
    yield f"{name}_bucket{_shown({**labels, 'le': '+Inf'})} {below}"
    yield f"{name}_sum{_shown(labels)} {_number(told.sum / unit)}"
    yield f"{name}_count{_shown(labels)} {below}"


def _shown(labels: Labels) -> str:
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
