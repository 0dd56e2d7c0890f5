"""Families of variants drawn at random: run times of several shapes, accuracies to choose among."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from fermata.foundation.json_types import Json, JsonObject
from fermata.foundation.units import ms
from fermata.profiles.profile import Profile
from fermata.profiles.store import load_table

SHAPES = ("linear", "gpu", "measured")
MEASURED = ("h200-graph", "h200-eager")
BATCH_SIZE_MAX = 64
VARIANTS_MAX = 12
FLAT_UNTIL = (2, 32)
"""Batch sizes up to which a GPU-shaped run time hardly grows."""


@dataclass(frozen=True, slots=True)
class DrawnVariant:
    """One variant: its run times by batch size, and its accuracy."""

    p50_ms: tuple[float, ...]
    p99_ms: tuple[float, ...]
    accuracy: float

    def row(self, name: str) -> JsonObject:
        """The variant as a scenario file has it."""
        return {
            "name": name,
            "latency_ms": list(self.p50_ms),
            "p99_ms": list(self.p99_ms),
            "accuracy": self.accuracy,
        }


@dataclass(frozen=True, slots=True)
class DrawnFamily:
    """Variants of one application, and the traits that the draw gave them."""

    variants: tuple[DrawnVariant, ...]
    slo_ms: float
    traits: tuple[str, ...]

    def row(self, name: str, clients: Sequence[JsonObject]) -> JsonObject:
        """An application of this family as a scenario file has it."""
        variants = [each.row(f"variant-{place}") for place, each in enumerate(self.variants)]
        row: dict[str, Json] = {"name": name, "slo_ms": self.slo_ms, "variants": variants}
        return {**row, "clients": clients} if clients else row

    def cheapest_ms(self, slower: float = 1.0) -> float:
        """The least backend time that a request can take within the SLO, on backends that are so
        much slower; infinite where it takes longer than that."""
        return min(
            (
                slower * run_ms / size
                for variant in self.variants
                for size, run_ms in enumerate(variant.p50_ms, 1)
                if slower * run_ms <= self.slo_ms
            ),
            default=math.inf,
        )


def draw_family(rng: Random, count: int) -> DrawnFamily:
    """A family of so many variants, some of which may be of no use to anyone."""
    shape = rng.choice(SHAPES)
    tables = _measured(rng, count) if shape == "measured" else _synthetic(rng, count, shape)
    tables.sort(key=lambda table: table[0])
    accuracies = _accuracies(rng, [table[0] for table in tables])
    best_ms = tables[-1][0]
    slo_ms = best_ms * math.exp(rng.uniform(math.log(1.5), math.log(30.0)))
    traits = [shape]
    if count > 1:
        _spoil(rng, tables, accuracies, slo_ms, traits)
    tails = [_tail(rng, table, traits) for table in tables]
    variants = tuple(
        DrawnVariant(_rounded(table), _rounded(tail), round(accuracy, 4))
        for table, tail, accuracy in zip(tables, tails, accuracies, strict=True)
    )
    return DrawnFamily(variants, round(slo_ms, 4), tuple(dict.fromkeys(traits)))


def _rounded(table: list[float]) -> tuple[float, ...]:
    return tuple(round(each, 5) for each in table)


def _synthetic(rng: Random, count: int, shape: str) -> list[list[float]]:
    """Run times of variants whose cost spans a factor of 2 to 30."""
    fastest_ms = math.exp(rng.uniform(math.log(0.4), math.log(20.0)))
    span = math.exp(rng.uniform(math.log(2.0), math.log(30.0)))
    tables = []
    for number in range(count):
        place = number / max(1, count - 1) + (rng.uniform(-0.3, 0.3) / count if count > 2 else 0.0)
        alone_ms = fastest_ms * span ** max(0.0, place)
        # The part of a single run that each further request costs again.
        growth = math.exp(rng.uniform(math.log(0.03), math.log(0.8)))
        if shape == "gpu":
            flat = rng.randint(*FLAT_UNTIL)
            slope_ms = alone_ms / flat * rng.uniform(0.7, 1.0)
            table = [
                alone_ms * (1.0 + 0.05 * (size - 1) / flat) + slope_ms * max(0, size - flat)
                for size in range(1, BATCH_SIZE_MAX + 1)
            ]
        else:
            table = [
                alone_ms * (1.0 + growth * (size - 1)) for size in range(1, BATCH_SIZE_MAX + 1)
            ]
        tables.append(table)
    return tables


def _measured(rng: Random, count: int) -> list[list[float]]:
    """Run times as they were measured, of models drawn from one table."""
    profiles = [each for each in load_table(rng.choice(MEASURED)).profiles if _is_whole(each)]
    chosen = rng.sample(profiles, min(count, len(profiles)))
    return [
        [run_ns / ms(1) for run_ns in profile.table_ns(profile.batch_size_max or BATCH_SIZE_MAX)]
        for profile in chosen
    ]


def _is_whole(profile: Profile) -> bool:
    """Whether it is a model of its own, not one input size of a model."""
    return "@" not in profile.name


def _accuracies(rng: Random, alone_ms: list[float]) -> list[float]:
    """Accuracies that rise with cost, ever more slowly or nearly in a line."""
    low, gain = rng.uniform(0.4, 0.8), rng.uniform(0.02, 0.18)
    bend = rng.uniform(0.5, 3.0)
    span = math.log(max(alone_ms[-1] / alone_ms[0], 1.0 + 1e-9))
    accuracies = []
    for each in alone_ms:
        along = math.log(each / alone_ms[0]) / span if len(alone_ms) > 1 else 1.0
        accuracies.append(low + gain * (1.0 - (1.0 - along) ** bend))
    return accuracies


def _spoil(
    rng: Random,
    tables: list[list[float]],
    accuracies: list[float],
    slo_ms: float,
    traits: list[str],
) -> None:
    """Make some variants dominated, unreachable or as accurate as a neighbour."""
    for number in range(1, len(tables)):
        fate = rng.random()
        if fate < 0.08:
            accuracies[number] = accuracies[number - 1] - rng.uniform(0.0, 0.03)
            traits.append("dominated")
        elif fate < 0.14:
            accuracies[number] = accuracies[number - 1]
            traits.append("equal")
        elif fate < 0.19 and number < len(tables) - 1:
            factor = slo_ms * rng.uniform(1.01, 3.0) / tables[number][0]
            tables[number] = [factor * each for each in tables[number]]
            traits.append("unreachable")


def _tail(rng: Random, table: list[float], traits: list[str]) -> list[float]:
    """The 99th percentiles: a few per cent above, and now and then one that is far too high."""
    spread = 1.0 + rng.uniform(0.0, 0.08)
    tail = [spread * each for each in table]
    if rng.random() < 0.15:
        place = rng.randrange(min(len(tail), 16))
        tail[place] *= rng.uniform(1.5, 3.5)
        traits.append("outlier")
    # A profile takes the running maximum of what was measured.
    return list(accumulate(tail, max))
