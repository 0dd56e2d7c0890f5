"""The way that each batch size runs, chosen by run times and kept on disk."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fermata.deployments.backend.execution.captured import PLAIN

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


def choose(times_ns: Times, sizes: Sequence[int]) -> Choice:
    """The fastest way of each size, by the next larger size that was measured."""
    plain = times_ns[PLAIN]
    ways: dict[int, str] = {}
    for size in sizes:
        at = min((each for each in plain if each >= size), default=max(plain))
        known = {way: found[at] for way, found in times_ns.items() if at in found}
        fastest = min(known, key=lambda way: known[way])
        if known[fastest] <= WORTH * plain[at]:
            ways[size] = fastest
    return Choice(ways, {way: dict(found) for way, found in times_ns.items()})


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
