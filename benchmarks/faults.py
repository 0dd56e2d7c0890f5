"""Faults: simulated by the thousand, real processes killed under load, and ten times the load."""

import argparse
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator

from benchmarks.cut_off import broken, hanging, partitions, raising
from benchmarks.figures import Figure, parts_parser, run
from fermata.fault_simulator.run import run_lasting, run_seed
from fermata.fault_simulator.story import RunResult

SCHEDULES = 10_000
LASTING = 2_000
QUICK = 100
TELL_EVERY = 500
ROLES = (
    "backend",
    "router",
    "router with standby",
    "router that waits",
    "frontend",
    "control plane",
    "Serve controller",
    "GCS",
)
PARTS = {
    "simulated": "seeds of the fault simulation",
    "lasting": "seeds whose faults never end: the rest must go on serving",
    "cut-off": "a backend and a frontend that do not reach each other",
    "broken": "a backend that fails beside good ones, and alone",
    "inputs": "inputs that hang, and inputs that raise",
    "live": "every process of a running server, killed one after the other",
    **{f"live {role}": "one of them alone" for role in ROLES},
    "only-backend": "the only backend, killed with a spare, with one in host memory, and without",
    "only-gpu": "the same with ResNet-50 on a GPU",
    "overload-simulated": "ten times the capacity of eight simulated GPUs",
    "overload": "ten times the capacity of a running server",
    "secured": "what TLS and tokens cost",
    "soak": "a long load with a kill every two minutes",
}
SPARES = ("yes", "host", "no")
APART = {"only-gpu", *(f"live {role}" for role in ROLES)}
"""Played where they are asked for: one needs a GPU, the others are in `live`."""


def simulated(
    first: int, count: int, play: Callable[[int], RunResult] = run_seed, name: str = ""
) -> Iterator[Figure]:
    """Seeds in order, on every core that it may use."""
    broken: list[int] = []
    # Ctrl-C is for all of them; this one says so and ends the others.
    deaf = (signal.SIGINT, signal.SIG_IGN)
    context, cores = multiprocessing.get_context("spawn"), len(os.sched_getaffinity(0))
    with context.Pool(cores, signal.signal, deaf) as pool:
        seeds = range(first, first + count)
        for done, story in enumerate(pool.imap_unordered(play, seeds, chunksize=8), 1):
            if story.broken:
                # At once: a run of an hour may be cut off.
                print(f"{_again(story.seed, play)}: {story.broken}", file=sys.stderr)
                broken.append(story.seed)
            if done % TELL_EVERY == 0:
                print(f"{done:,} of {count:,}, {len(broken)} broken", file=sys.stderr)
    figure = f"{count:,} simulated fault schedules{name} from {first:,} on: broken"
    yield Figure(figure, len(broken), "", 0, at_most=True)


def _again(seed: int, play: Callable[[int], RunResult]) -> str:
    """How to play a seed again."""
    option = " --lasting" if play is run_lasting else ""
    return f"seed {seed} is broken: python -m fermata.fault_simulator{option} --seed {seed}"


def measure(given: argparse.Namespace, quick: bool) -> Iterator[Figure]:
    parts = given.only or [name for name in PARTS if name not in APART]
    if "simulated" in parts:
        yield from simulated(given.first, given.seeds or (QUICK if quick else SCHEDULES))
    if "lasting" in parts:
        count = given.seeds or (QUICK if quick else LASTING)
        yield from simulated(given.first, count, run_lasting, " that never end")
    if "cut-off" in parts:
        yield from partitions(quick)
    if "broken" in parts:
        yield from broken(quick)
    if "inputs" in parts:
        yield from hanging(quick)
        yield from raising(quick)
    # Not above: what needs no server must not need what a server does.
    for role in ROLES:
        if "live" in parts or f"live {role}" in parts:
            from benchmarks.kills import BOTH
            from benchmarks.kills import measure as measure_live

            signs = [signal.Signals[given.signal]] if given.signal else BOTH
            yield from measure_live(role, given.times or (1 if quick else 20), signs)
    if "only-backend" in parts:
        from benchmarks.only_backend import measure as measure_only

        yield from measure_only(given.times or (1 if quick else 20), given.spare or SPARES)
    if "only-gpu" in parts:
        from benchmarks.gpu_kills import measure as measure_gpu

        yield from measure_gpu(given.times or (1 if quick else 20), given.spare or SPARES)
    if "overload-simulated" in parts:
        from benchmarks.overload import simulated as overload_simulated

        yield from overload_simulated(quick)
    if "overload" in parts:
        from benchmarks.overload import live as overload_live

        yield from overload_live(quick)
    if "secured" in parts:
        from benchmarks.secured import cost

        yield from cost(quick)
    if "soak" in parts:
        from benchmarks.soak import measure as measure_soak

        yield from measure_soak(given.minutes or (5 if quick else 60))


if __name__ == "__main__":
    parser = parts_parser(PARTS)
    parser.add_argument("--first", type=int, default=0, help="the first simulated seed")
    parser.add_argument("--seeds", type=int, help="how many of them")
    parser.add_argument("--times", type=int, help="how often each process is killed")
    parser.add_argument(
        "--signal", choices=("SIGKILL", "SIGSTOP"), help="of the two that processes get"
    )
    parser.add_argument(
        "--spare", action="append", choices=SPARES, help="of an only backend; may be repeated"
    )
    parser.add_argument("--minutes", type=float, help="how long the soak lasts")
    arguments = parser.parse_known_args()[0]
    run("Faults", lambda quick: measure(arguments, quick), parser)
