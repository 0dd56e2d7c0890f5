"""A large fleet and its day: backends of three kinds, many models, load that changes. All drawn.

Spans are compressed as in `benchmarks/day.py`, load times too; deadlines are not.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.day import COMPRESSION, STEP_S, SURGES, relative_rates
from fermata.foundation.units import SECOND, ms
from fermata.partitioner.backends import backends_at, run_times_ns
from fermata.partitioner.plan import PlacedModel, Plan
from fermata.profiles.profile import slowed
from fermata.profiles.store import BYTES_PER_MB, load_table

TABLE = "symphony-1080ti"
BACKENDS, MODELS = 10_000, 1_000
PEAK = 0.84
"""Share of all backends that the load needs at its highest, by Eqns 2 and 3."""
ROUTER_RPS_MAX = 25_000.0
"""R_max of a router that is not compiled."""
ROUTER_FILL = 0.8
"""Share of it that the highest load takes, so that models can move."""
MEMORY_BYTES = int(11_000 * BYTES_PER_MB)
LOAD_MB_PER_S = 500.0
SLO_OVER_RUN = 2.0
"""A model goes to kinds on which its SLO is at least so many times the run of one request."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Accelerators of one sort."""

    name: str
    share: float
    """Part of all backends."""
    slower: float
    """Run times over those of the table."""


KINDS = (Kind("large", 0.3, 0.6), Kind("middle", 0.45, 1.0), Kind("small", 0.25, 1.4))


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet and its load over a day."""

    models: tuple[PlacedModel, ...]
    """Their rates are those of the first step."""
    kinds: tuple[str, ...]
    """By sub-cluster."""
    backends: Mapping[str, int]
    """How many there are of each kind."""
    traces: npt.NDArray[np.float64]
    """[model][step]: requests a second."""
    surges: tuple[int, ...]
    """Steps at which all rates rise at once."""
    played: tuple[int, ...]
    """Sub-clusters whose requests are played one by one."""
    seed: int

    @property
    def end_ns(self) -> int:
        return round(int(self.traces.shape[1]) * STEP_S * SECOND)

    def rates_at(self, at_ns: int) -> dict[str, float]:
        step = min(self.traces.shape[1] - 1, at_ns // round(STEP_S * SECOND))
        return dict(zip(self.names, self.traces[:, step].tolist(), strict=True))

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.models]

    def need(self, homes: Plan, rates: Mapping[str, float]) -> list[float]:
        """By sub-cluster: backends that Eqns 2 and 3 give its models at these rates."""
        found = [0.0] * len(self.kinds)
        for model in self.models:
            home = homes.home[model.name]
            found[home] += _need(model, self.kinds[home], rates[model.name])
        return found


def draw_fleet(seed: int, share: float = 1.0, span: tuple[float, float] = (0.0, 1.0)) -> Fleet:
    """A fleet of this share of the whole, through a part of the day."""
    rng = random.Random(seed)
    models = [_draw_model(rng, number) for number in range(max(12, round(share * MODELS)))]
    traces = np.array([relative_rates(rng, 0.05 + rng.expovariate(1.0)) for _ in models])
    backends = {each.name: round(share * BACKENDS * each.share) for each in KINDS}
    traces *= _scale(models, traces, PEAK * sum(backends.values()))
    peak_rps = float(traces.sum(axis=0).max())
    kinds = _kinds(math.ceil(peak_rps / (ROUTER_FILL * ROUTER_RPS_MAX)))
    steps = traces.shape[1]
    first, last = (round(part * steps) for part in span)
    traces = traces[:, first:last]
    return Fleet(
        tuple(
            replace(model, rate_rps=float(trace[0]))
            for model, trace in zip(models, traces, strict=True)
        ),
        kinds,
        backends,
        traces,
        tuple(
            step - first
            for step in (math.ceil(start * steps) for start, _ in SURGES)
            if first < step < last
        ),
        tuple(sorted(rng.sample(range(len(kinds)), max(1, round(len(kinds) / 10))))),
        seed,
    )


def _draw_model(rng: random.Random, number: int) -> PlacedModel:
    """A specialised copy of a model of the table."""
    profile = rng.choice(load_table(TABLE).profiles)
    assert profile.slo_ns is not None
    static_mb = rng.uniform(50.0, 600.0)
    on_kinds = {each.name: slowed(profile, each.slower) for each in KINDS}
    profiles = {
        kind: found
        for kind, found in on_kinds.items()
        if SLO_OVER_RUN * found.latency_ns(1) <= profile.slo_ns
    }
    return PlacedModel(
        f"{profile.name}-{number}",
        1.0,
        int(static_mb * BYTES_PER_MB),
        int(100 * BYTES_PER_MB),
        1e3 * static_mb / LOAD_MB_PER_S / COMPRESSION,
        profiles,
        profile.slo_ns,
    )


def load_ns(model: PlacedModel) -> int:
    """Time to load a model on a backend."""
    return ms(model.load_cost)


def _scale(models: Sequence[PlacedModel], traces: npt.NDArray[np.float64], wanted: float) -> float:
    """The factor for rates whose highest need is as wanted, on a mean of the kinds."""
    peak = int(np.argmax(traces.sum(axis=0)))
    scale = 1.0
    # What it needs is not quite proportional to the rates: a few rounds are close enough.
    for _ in range(6):
        need = sum(
            each.share * _need(model, each.name, scale * float(trace[peak]))
            for model, trace in zip(models, traces, strict=True)
            for each in _weighted(model)
        )
        scale *= wanted / need
    return scale


def _weighted(model: PlacedModel) -> list[Kind]:
    """Kinds that run a model, with the part of its requests that falls to each on average."""
    there = [each for each in KINDS if each.name in model.profiles]
    whole = sum(each.share / each.slower for each in there)
    return [replace(each, share=each.share / each.slower / whole) for each in there]


def _kinds(count: int) -> tuple[str, ...]:
    """The kind of each sub-cluster. All carry about the same rate, so that a kind has as many as
    its backends are fast."""
    parts = [each.share / each.slower for each in KINDS]
    counts = [max(1, round(count * part / sum(parts))) for part in parts]
    return tuple(each.name for each, own in zip(KINDS, counts, strict=True) for _ in range(own))


def _need(model: PlacedModel, kind: str, rate_rps: float) -> float:
    profile = model.profiles[kind]
    return backends_at(run_times_ns(profile), model.slo_ns, rate_rps) if rate_rps > 0.0 else 0.0
