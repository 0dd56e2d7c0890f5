"""Plays seeds of the fault simulation: `python -m fermata.fault_simulator --seconds 300`."""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from fermata.fault_simulator.run import (
    run_lasting,
    run_pipelines,
    run_seed,
    run_sequences,
    run_trials,
)
from fermata.fault_simulator.story import RunResult
from fermata.fault_simulator.sub_clusters.run import run_sub_clusters

SEEDS_EACH = 8


class Play(Protocol):
    """One seed of a story."""

    def __call__(self, seed: int, *, tell: bool = False) -> RunResult: ...


USUAL = "usual"
"""The story that has no option."""
STORIES: dict[str, tuple[Play, str]] = {
    "lasting": (run_lasting, "faults never end, and the rest must serve"),
    "sequences": (run_sequences, "some requests share a state with others"),
    "sub-clusters": (run_sub_clusters, "two routers, and applications that move"),
    "trials": (run_trials, "cameras are mapped, and a version is on trial"),
    "pipelines": (run_pipelines, "some requests are queries of several stages"),
}
"""Stories other than the usual one, each with an option of its name."""


@dataclass(frozen=True, slots=True)
class Played:
    """Seeds to play, and the limits of that."""

    first: int
    count: int | None
    """None: as many as fit."""
    seconds: float
    jobs: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fermata.fault_simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed and print its events")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, help="number of seeds; the default is as many as fit")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit in seconds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    stories = parser.add_mutually_exclusive_group()
    stories.add_argument("--all", action="store_true", help="a part of the time for every story")
    for name, (_, told) in STORIES.items():
        stories.add_argument(f"--{name}", action="store_const", const=name, dest="story", help=told)
    given = parser.parse_args()
    name = given.story or USUAL
    if given.seed is not None:
        if given.all:
            parser.error("--seed is of one story; name it in place of --all")
        story = play_of(name)(given.seed, tell=True)
        print("\n".join(story.said))
        print(describe(story))
        return 1 if story.broken else 0
    played = Played(given.first, given.count, given.seconds, given.jobs)
    return 0 if (fuzz_all(played) if given.all else fuzz(name, played)) else 1


def play_of(story: str) -> Play:
    return run_seed if story == USUAL else STORIES[story][0]


def describe(story: RunResult) -> str:
    ends = ", ".join(f"{count} {name}" for name, count in sorted(story.outcomes.items()))
    verdict = f"BROKEN: {story.broken}" if story.broken else "every invariant holds"
    return f"seed {story.seed}: {verdict} ({ends}; {story.steps} steps)"


def fuzz(name: str, played: Played, play: Callable[[int], RunResult] | None = None) -> bool:
    """Whether no seed of a story breaks anything; they are played in order."""
    until_s = time.monotonic() + played.seconds
    first, option = played.first, "" if name == USUAL else f"--{name} "
    last = sys.maxsize if played.count is None else first + played.count
    seed, broken, outcomes = first, 0, Counter[str]()
    with multiprocessing.get_context("spawn").Pool(played.jobs) as pool:
        # A few at a time: a pool takes all that it is offered, whatever the clock says. The first
        # are played in any case: a story that had no time would count as one that stood.
        while seed < last and (seed == first or time.monotonic() < until_s):
            some = range(seed, min(last, seed + SEEDS_EACH * played.jobs))
            for story in pool.imap_unordered(play or play_of(name), some):
                outcomes.update(story.outcomes)
                if story.broken:
                    broken += 1
                    print(describe(story))
                    again = f"python -m fermata.fault_simulator {option}--seed {story.seed}"
                    print(f"replay with: {again}", flush=True)
            seed = some.stop
    ends = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    print(f"{name}: {seed - first} seeds from {first} on, {broken} broken; requests: {ends}")
    return not broken


def fuzz_all(
    played: Played,
    play: Callable[[str, Played], bool] = fuzz,
    clock_s: Callable[[], float] = time.monotonic,
) -> bool:
    """Whether no story breaks anything. Each has an even part of the time that is left: the last
    seeds of those before it may have taken longer."""
    until_s, names = clock_s() + played.seconds, (USUAL, *STORIES)
    stood = [
        play(name, replace(played, seconds=(until_s - clock_s()) / (len(names) - place)))
        for place, name in enumerate(names)
    ]
    return all(stood)


if __name__ == "__main__":
    sys.exit(main())
