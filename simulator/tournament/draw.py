"""One workload of the tournament, drawn from a seed, as a scenario file has it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from fermata.foundation.json_types import Json, JsonObject
from fermata.simulator.tournament.families import VARIANTS_MAX, DrawnFamily, draw_family

REQUESTS = 20_000
"""Requests that count, whatever the rate."""
WARMUP_S = 2.0
WARMUP_SLOS = 5.0
"""The warm-up is as long as the run, but not above the first. Where SLOs are longer than the run
it lasts for some of these."""
LOAD = (0.02, 1.30)
BACKENDS_MAX = 64
APPLICATIONS_MAX = 40
FAMILIES_MAX = 3
"""Distinct families in one workload; further applications are copies."""
JITTER_MAX = 0.10
TWO_KINDS = 0.25
"""Share of the draws whose backends are of two kinds."""
SLOWER = (1.5, 6.0)
"""Run times of the slower kind over those of the other."""
ALONE = 0.5
"""Share of the draws with one application only."""
ZIPF = (0.3, 1.5)
GAMMA_MIN = 0.05
ARRIVALS = ("poisson", "gamma", "two-state", "three-state", "periodic", "steps")
STEPS = 8
FPS = (5.0, 60.0)
CLIENTS_MAX = 2_000
FRAMES_MIN = 10
"""Frames that each camera sends at least."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A workload without a policy."""

    seed: int
    document: JsonObject
    """Plain values of a scenario file."""
    traits: tuple[str, ...]
    load: float
    """Rate over the highest that the cheapest full batches could serve."""
    warmup_requests: float
    """Requests that come before those that count."""


def draw(
    seed: int, variants: tuple[int, int] = (1, VARIANTS_MAX), requests: int = REQUESTS
) -> Draw:
    """The workload of a seed; families have a number of variants within `variants`."""
    rng = Random(f"tournament {seed}")
    backends = round(math.exp(rng.uniform(0.0, math.log(BACKENDS_MAX))))
    applications = _draw_applications(rng, variants)
    popularity = _popularity(rng, len(applications))
    weights = _weights(popularity, len(applications))
    load = math.exp(rng.uniform(math.log(LOAD[0]), math.log(LOAD[1])))
    groups = _groups(seed, backends)
    rate_rps = load * _limit_rps(groups, applications, weights)
    duration_s = requests / rate_rps
    longest_s = max(family.slo_ms for _, family in applications) / 1e3
    kind = "changing" if popularity == "changing" else rng.choice(ARRIVALS)
    jitter = round(rng.uniform(0.0, JITTER_MAX), 4)
    names = [name for name, _ in applications]
    arrivals = _arrivals(rng, kind, names, duration_s, longest_s)
    rows: list[Json] = []
    for weight, (name, family) in zip(weights, applications, strict=True):
        streams = [_streams(rng, rate_rps * weight, duration_s)] if kind == "periodic" else []
        rows.append(family.row(name, streams))
    warmup_s = max(min(WARMUP_S, duration_s), min(5.0 * duration_s, WARMUP_SLOS * longest_s))
    document: JsonObject = {
        "seed": seed,
        "duration_s": duration_s,
        "warmup_s": warmup_s,
        "backends": backends if len(groups) == 1 else list(groups),
        "rate_rps": rate_rps,
        "popularity": "equal" if popularity == "changing" else popularity,
        "execution": {"jitter": jitter},
        "arrivals": arrivals,
        "applications": rows,
    }
    traits = dict.fromkeys(trait for _, family in applications for trait in family.traits)
    shares = "zipf" if isinstance(popularity, Mapping) else str(popularity)
    fleet = f"{backends} backends" + (" of two kinds" if len(groups) > 1 else "")
    described = (fleet, f"{len(rows)} applications", kind, shares, *traits)
    return Draw(seed, document, described, load, warmup_s * rate_rps)


def _groups(seed: int, backends: int) -> list[JsonObject]:
    """The backends by kind, in either order. They have a generator of their own, so that the rest
    of a draw is the same with one kind or two."""
    rng = Random(f"tournament kinds {seed}")
    if backends < 2 or rng.random() >= TWO_KINDS:
        return [{"count": backends}]
    slow, slower = rng.randint(1, backends - 1), round(math.exp(rng.uniform(*_logs(SLOWER))), 3)
    groups: list[JsonObject] = [
        {"count": backends - slow, "kind": "fast"},
        {"count": slow, "kind": "slow", "slower": slower},
    ]
    rng.shuffle(groups)
    return groups


def _logs(limits: tuple[float, float]) -> tuple[float, float]:
    return math.log(limits[0]), math.log(limits[1])


def _draw_applications(rng: Random, variants: tuple[int, int]) -> list[tuple[str, DrawnFamily]]:
    """Applications by name; of many, several have the same family."""
    count = 1 if rng.random() < ALONE else rng.randint(2, APPLICATIONS_MAX)
    families = [
        draw_family(rng, rng.randint(*variants))
        for _ in range(min(count, rng.randint(1, FAMILIES_MAX)))
    ]
    return [(f"app-{place}", families[place % len(families)]) for place in range(count)]


def _popularity(rng: Random, count: int) -> Json:
    kind = rng.choice(("equal", "zipf", "changing")) if count > 1 else "equal"
    return {"zipf": round(rng.uniform(*ZIPF), 3)} if kind == "zipf" else kind


def _weights(popularity: Json, count: int) -> list[float]:
    """The part of each application in the whole rate."""
    exponent = float(str(popularity["zipf"])) if isinstance(popularity, Mapping) else 0.0
    weights = [1.0 / rank**exponent for rank in range(1, count + 1)]
    return [weight / sum(weights) for weight in weights]


def _limit_rps(
    groups: list[JsonObject], applications: list[tuple[str, DrawnFamily]], weights: list[float]
) -> float:
    """The rate of the cheapest full batches on backends that never idle."""
    limit_rps = 0.0
    for group in groups:
        slower = float(str(group.get("slower", 1.0)))
        cost_ms = sum(
            weight * family.cheapest_ms(slower)
            for weight, (_, family) in zip(weights, applications, strict=True)
        )
        limit_rps += int(str(group["count"])) * 1e3 / cost_ms
    return limit_rps


def _arrivals(
    rng: Random, kind: str, names: list[str], duration_s: float, slo_s: float
) -> JsonObject:
    if kind == "gamma":
        shape = math.exp(rng.uniform(math.log(GAMMA_MIN), 0.0))
        return {"process": "gamma", "shape": round(shape, 4)}
    if kind in ("two-state", "three-state"):
        return _bursts(rng, 2 if kind == "two-state" else 3, duration_s, slo_s)
    if kind == "periodic":
        return {"process": "periodic", "phase": rng.choice(("locked", "staggered", "random"))}
    if kind == "steps":
        return {"process": "trace", "rps": _steps(rng, 0.2), "step_s": duration_s / STEPS}
    if kind == "changing":
        traces: JsonObject = {name: _steps(rng, 0.1) for name in names}
        return {"process": "trace", "applications": traces, "step_s": duration_s / STEPS}
    return {"process": "poisson"}


def _steps(rng: Random, low: float) -> list[Json]:
    return [round(rng.uniform(low, 2.0 - low), 3) for _ in range(STEPS)]


def _bursts(rng: Random, states: int, duration_s: float, slo_s: float) -> JsonObject:
    """Phases that last from one SLO to a tenth of the run, each with a rate of its own."""
    longest_s = max(slo_s, duration_s / 10)
    leave = math.exp(-rng.uniform(math.log(slo_s), math.log(longest_s)))
    rates = [rng.uniform(0.1, 0.8), rng.uniform(1.0, 3.0), rng.uniform(2.0, 6.0)][:states]
    d0: list[Json] = []
    d1: list[Json] = []
    for state, rate in enumerate(rates):
        # Only ratios count: the whole is rescaled to the rate of the draw.
        arrive = 1e3 * rate
        silent: list[Json] = [leave / (states - 1)] * states
        silent[state] = -(leave + arrive)
        arriving: list[Json] = [0.0] * states
        arriving[state] = arrive
        d0.append(silent)
        d1.append(arriving)
    return {"process": "map", "d0": d0, "d1": d1}


def _streams(rng: Random, rate_rps: float, duration_s: float) -> JsonObject:
    """Cameras of one frame rate that make up this rate, each with some frames in the run."""
    count_max = min(CLIENTS_MAX, int(rate_rps * duration_s / FRAMES_MIN))
    count = max(1, min(count_max, round(rate_rps / rng.uniform(*FPS))))
    return {"count": count, "fps": round(rate_rps / count, 5)}
