"""Plans are solved in a process of their own, which disturbs no router."""

import os

from fermata.partitioner.plan import Plan, Problem


def solve_placement(problem: Problem, seconds: float) -> Plan:
    """The best plan found; today's where nothing better is. A router may run on the same cores, and
    goes first."""
    os.nice(19)
    # Only there: the solver's packages take long to import.
    from fermata.partitioner.solver.two_level import solve_two_level

    return solve_two_level(problem, seconds).plan
