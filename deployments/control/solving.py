"""Plans are solved in a process of their own, which disturbs no router."""

import os

from fermata.partitioner.plan import Plan, Problem


def solve_placement(problem: Problem, seconds: float) -> Plan:
    """The best plan found; today's where nothing better is. A router may run on the same cores, and
    goes first."""
    # Imported only there, since it takes long, and before it gives way: where every core is busy, a
    # plan would otherwise come when the load that asked for it is over.
    from fermata.partitioner.solver.two_level import solve_two_level

    os.nice(19)
    return solve_two_level(problem, seconds).plan
