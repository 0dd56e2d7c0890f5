"""A control loop over two sub-clusters, fed with readings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fermata.autoscaler.control_loop import ControlEffect, ControlLoop
from fermata.autoscaler.options import AutoscalerOptions, EpochOptions
from fermata.autoscaler.readings import ApplicationReading, ClusterReading, SubClusterReading
from fermata.autoscaler.rule import RuleOptions
from fermata.foundation.units import SECOND, seconds
from fermata.partitioner.plan import PlacedModel, Plan

PAPER = RuleOptions(idle=0.0, release_after=1, cool_down=0, release_band=0.0, maximum=64)
AUTOSCALER = AutoscalerOptions(PAPER, window_ns=10 * SECOND)
EPOCHS = EpochOptions(sub_clusters=2, every_ns=60 * SECOND)
APART = Plan({"a": 0, "b": 1})
SWAPPED = Plan({"a": 1, "b": 0})


def models(static: int = 10) -> list[PlacedModel]:
    return [PlacedModel(name, 1.0, static) for name in ("a", "b")]


def reading(
    at_s: float,
    plan: Plan = APART,
    received: Mapping[str, int] | None = None,
    ended: Mapping[str, tuple[int, int]] | None = None,
    busy_s: Sequence[float] = (0.0, 0.0),
    backends: int = 10,
    **values: object,
) -> ClusterReading:
    """Two sub-clusters whose backends are up from the start; `ended` is (good, bad)."""
    counts = {
        name: ApplicationReading((received or {}).get(name, 0), *(ended or {}).get(name, (0, 0)))
        for name in ("a", "b")
    }
    sub_clusters = tuple(
        SubClusterReading(backends, seconds(at_s * backends), seconds(busy), 0.0) for busy in busy_s
    )
    made = ClusterReading(seconds(at_s), 1, counts, sub_clusters, plan)
    return replace(made, **values)  # type: ignore[arg-type]


def read(loop: ControlLoop, seen: ClusterReading) -> list[ControlEffect]:
    loop.on_reading(seen.at_ns, seen)
    return loop.take_effects()


def started(
    autoscaler: AutoscalerOptions | None = AUTOSCALER,
    epochs: EpochOptions | None = EPOCHS,
    plan: Plan = APART,
    static: int = 10,
    backends: int = 20,
) -> ControlLoop:
    """A loop whose router has this plan."""
    loop = ControlLoop(autoscaler, epochs, models(static))
    loop.on_start(0, reading(0, plan), backends)
    read(loop, reading(0, plan))
    loop.take_effects()
    assert not loop.is_placing
    return loop


def the(kind: type, effects: Sequence[ControlEffect]) -> ControlEffect:
    (found,) = [each for each in effects if isinstance(each, kind)]
    return found


def offered(**counts: int) -> dict[str, int]:
    return counts
