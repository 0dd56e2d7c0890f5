"""Plays seeds of the fault simulation: `python -m fermata.fault_simulator --seconds 300`."""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
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


STORIES: dict[str, tuple[Play, str]] = {
    "lasting": (run_lasting, "faults never end, and the rest must serve"),
    "sequences": (run_sequences, "some requests share a state with others"),
    "sub-clusters": (run_sub_clusters, "two routers, and applications that move"),
    "trials": (run_trials, "cameras are mapped, and a version is on trial"),
    "pipelines": (run_pipelines, "some requests are queries of several stages"),
}
"""Stories other than the usual one, each with an option of its name."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fermata.fault_simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed and print its events")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, help="number of seeds; the default is as many as fit")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit in seconds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    stories = parser.add_mutually_exclusive_group()
    for name, (_, told) in STORIES.items():
        stories.add_argument(f"--{name}", action="store_const", const=name, dest="story", help=told)
    given = parser.parse_args()
    play: Play = STORIES[given.story][0] if given.story else run_seed
    if given.seed is not None:
        story = play(given.seed, tell=True)
        print("\n".join(story.said))
        print(describe(story))
        return 1 if story.broken else 0
    replay = f"--{given.story} --seed" if given.story else "--seed"
    return fuzz(play, replay, given.first, given.count, given.seconds, given.jobs)


def describe(story: RunResult) -> str:
    ends = ", ".join(f"{count} {name}" for name, count in sorted(story.outcomes.items()))
    verdict = f"BROKEN: {story.broken}" if story.broken else "every invariant holds"
    return f"seed {story.seed}: {verdict} ({ends}; {story.steps} steps)"


def fuzz(
    play: Callable[[int], RunResult],
    replay: str,
    first: int,
    count: int | None,
    seconds: float,
    jobs: int,
) -> int:
    """Play seeds in order; returns 1 if one of them broke something."""
    until_s = time.monotonic() + seconds
    last = sys.maxsize if count is None else first + count
    seed, broken, outcomes = first, 0, Counter[str]()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        # A few at a time: a pool takes all that it is offered, whatever the clock says.
        while seed < last and time.monotonic() < until_s:
            some = range(seed, min(last, seed + SEEDS_EACH * jobs))
            for story in pool.imap_unordered(play, some):
                outcomes.update(story.outcomes)
                if story.broken:
                    broken += 1
                    print(describe(story))
                    print(
                        f"replay with: python -m fermata.fault_simulator {replay} {story.seed}",
                        flush=True,
                    )
            seed = some.stop
    ends = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    print(f"{seed - first} seeds from {first} on, {broken} broken; requests: {ends}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
