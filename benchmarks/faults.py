"""Faults: simulated by the thousand, and real processes killed under load."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence

from benchmarks.figures import Figure, run_parts
from faults.run import play

SCHEDULES = 10_000
QUICK = 100
PARTS = {
    "simulated": "seeds of the fault simulation",
    "live": "processes of a running server, killed one after the other",
    "overload-simulated": "ten times the capacity of eight simulated GPUs",
    "overload": "ten times the capacity of a running server",
    "secured": "what TLS and tokens cost",
}


def simulated(count: int) -> Iterator[Figure]:
    """Seeds from 0 on, on every core."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        broken = [
            story.seed
            for story in pool.imap_unordered(play, range(count), chunksize=8)
            if story.broken
        ]
    for seed in sorted(broken):
        print(f"seed {seed} is broken: python -m faults --seed {seed}")
    name = f"{count:,} simulated fault schedules: broken"
    yield Figure(name, len(broken), "", 0, at_most=True)


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    if "simulated" in parts:
        yield from simulated(QUICK if quick else SCHEDULES)
    if "live" in parts:
        # Not above: what needs no server must not need what a server does.
        from benchmarks.kills import measure as measure_live

        yield from measure_live(quick)
    if "overload-simulated" in parts:
        from benchmarks.overload import simulated as overload_simulated

        yield from overload_simulated(quick)
    if "overload" in parts:
        from benchmarks.overload import live as overload_live

        yield from overload_live(quick)
    if "secured" in parts:
        from benchmarks.secured import cost

        yield from cost(quick)


if __name__ == "__main__":
    run_parts("Faults", measure, PARTS)
