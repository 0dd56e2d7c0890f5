"""`python -m faults`: play seeds until the time is up, or one of them step by step."""

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

from faults.run import Story, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and tell what happens")
    parser.add_argument("--first", type=int, default=0, help="the first of many")
    parser.add_argument("--count", type=int, help="how many; the default is as many as fit")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long, at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.seed is not None:
        story = play(given.seed, tell=True)
        print("\n".join(story.said))
        print(describe(story))
        return 1 if story.broken else 0
    return fuzz(given.first, given.count, given.seconds, given.jobs)


def describe(story: Story) -> str:
    ends = ", ".join(f"{count} {name}" for name, count in sorted(story.outcomes.items()))
    verdict = f"BROKEN: {story.broken}" if story.broken else "every invariant holds"
    return f"seed {story.seed}: {verdict} ({ends}; {story.steps} steps)"


def fuzz(first: int, count: int | None, seconds: float, jobs: int) -> int:
    """Play seeds in order; returns 1 if one of them broke something."""
    until_s = time.monotonic() + seconds
    last = None if count is None else first + count
    played, broken, outcomes = 0, 0, Counter[str]()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for story in pool.imap_unordered(play, _seeds(first, last, until_s), chunksize=4):
            played += 1
            outcomes.update(story.outcomes)
            if story.broken:
                broken += 1
                print(describe(story))
                print(f"replay with: python -m faults --seed {story.seed}", flush=True)
    ends = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    print(f"{played} seeds from {first} on, {broken} broken; requests: {ends}")
    return 1 if broken else 0


def _seeds(first: int, last: int | None, until_s: float) -> Iterator[int]:
    for seed in itertools.count(first):
        if (last is not None and seed >= last) or time.monotonic() > until_s:
            return
        yield seed


if __name__ == "__main__":
    sys.exit(main())
