"""Where plans are solved, routers go first."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from fermata.autoscaler.options import EpochOptions
from fermata.autoscaler.placer import placement_problem
from fermata.deployments.control.solving import solve_placement
from fermata.partitioner.plan import PlacedModel


def _solve() -> tuple[int, list[str]]:
    models = [PlacedModel(name, 10.0, 1) for name in "ab"]
    plan = solve_placement(placement_problem(EpochOptions(sub_clusters=2), models), 1.0)
    return os.getpriority(os.PRIO_PROCESS, 0), sorted(plan.home)


def test_the_solver_has_the_lowest_priority() -> None:
    # In a process of its own, as for Ray: no priority can be taken back.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(_solve).result() == (19, ["a", "b"])
