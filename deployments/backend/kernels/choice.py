"""The way that each batch size runs, chosen by run times and kept on disk."""

import json
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fermata.deployments.backend.execution.cuda.captured import PLAIN

WORTH = 0.97
"""Another way is taken where it needs at most this share of the plain one's time."""
Times = Mapping[str, Mapping[int, int]]
"""Run times in nanoseconds, by way and batch size."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen ways, and the times that they were chosen by."""

    ways: dict[int, str]
    """By batch size; sizes that are absent run the plain way."""
    times_ns: dict[str, dict[int, int]]


def choose(times_ns: Times, sizes: Sequence[int], by_size: Collection[str] = ()) -> Choice:
    """The fastest way of each size, by the next larger size that was measured.

    Ways `by_size` have no sizes but the measured ones, and batches are padded to these: such a way
    is held against what another one takes at the size itself.
    """
    plain = times_ns[PLAIN]
    ways: dict[int, str] = {}
    for size in sizes:
        at = min((each for each in plain if each >= size), default=max(plain))
        known = {
            way: found[at] for way, found in times_ns.items() if at in found and way not in by_size
        }
        fastest = min(known, key=lambda way: known[way])
        if known[fastest] <= WORTH * plain[at]:
            ways[size] = fastest
        best_ns = WORTH * _between(times_ns[ways.get(size, PLAIN)], size)
        for way in by_size:
            next_size = larger(times_ns.get(way, {}), size)
            if next_size is not None and times_ns[way][next_size] <= best_ns:
                ways[size], best_ns = way, times_ns[way][next_size]
    return Choice(ways, {way: dict(found) for way, found in times_ns.items()})


def sizes_used(choice: Choice, way: str) -> set[int]:
    """Sizes at which a way that is built by size serves batches."""
    built = choice.times_ns.get(way, {})
    used = {larger(built, size) for size, chosen in choice.ways.items() if chosen == way}
    return {size for size in used if size is not None}


def most_served(left: Sequence[int], sizes: Sequence[int], served: Mapping[int, int]) -> int:
    """The one of the sizes `left` that most batches would run at, were there only `sizes`."""
    counts = dict.fromkeys(sizes, 0)
    for size, count in served.items():
        at = larger(sizes, size)
        if at is not None:
            counts[at] += count
    # Without any load the largest one: nothing has a higher rate.
    return max(left, key=lambda size: (counts.get(size, 0), size))


def larger(sizes: Iterable[int], size: int) -> int | None:
    """The smallest of `sizes` that a batch of this size fits in; None where none does."""
    return min((each for each in sizes if each >= size), default=None)


def _between(found: Mapping[int, int], size: int) -> float:
    """Run time at a size, on the line between its neighbours that were measured."""
    above = larger(found, size)
    below = max((each for each in found if each <= size), default=above)
    if above is None or below is None or above == below:
        return found[max(found) if above is None else above]
    return found[below] + (found[above] - found[below]) * (size - below) / (above - below)


def save_choice(path: Path, choice: Choice) -> None:
    """Write a choice for the next start; a reader never sees half of it. OSError where it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"ways": choice.ways, "times_ns": choice.times_ns}
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    with os.fdopen(handle, "w") as file:
        json.dump(told, file)
    Path(name).replace(path)


def load_choice(path: Path) -> Choice | None:
    """The choice of an earlier start; None where there is none, or none that can be read."""
    try:
        told: Any = json.loads(path.read_text())
        ways = {int(size): str(way) for size, way in told["ways"].items()}
        times = {
            str(way): {int(size): int(took_ns) for size, took_ns in found.items()}
            for way, found in told["times_ns"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Choice(ways, times)
