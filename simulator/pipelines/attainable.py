"""An estimate of the rate of queries that any rule could serve, where they come at random.

The bound knows no chance. Here batches of first stages fill as queries come, and a query finds at
random what is to be done before it: queries come at random, and so do their fan-outs. What is in
front of it is worked off by all backends together, and none of them idles meanwhile. The batches
are those with which the most can be served.
"""

from math import pi, sqrt

from fermata.foundation.units import NEVER, SECOND
from fermata.router.core.queries.budgets import StageBudget, fit
from fermata.router.core.queries.rooms import load_of
from fermata.simulator.pipelines.bound import bound_rps, direct_s, polish, stage_budgets
from fermata.simulator.pipelines.sizing import square_s
from fermata.simulator.scenario.scenario import Scenario

ROOMS = 25
"""Parts of the SLO that batches may take, of so many even steps; the smallest is half of it."""
HALVINGS = 9
"""Steps in which the rate is found."""


def attainable_rps(scenario: Scenario, lost: float) -> float:
    """Requests of all kinds a second, of whose queries such a part may be lost.

    Run times, with their jitter, and fan-outs are known beforehand, on average. No rule is meant
    that chooses among queries by what is found to come out of them, and every backend is of the
    same kind.
    """
    most = bound_rps(scenario)
    best = 0.0
    for step in range(ROOMS):
        room = 1.0 - 0.5 * step / ROOMS
        if not _serves(scenario, room, best, lost):
            continue
        low, high = best, most
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if _serves(scenario, room, middle, lost) else (low, middle)
        best = low
    return best


def _serves(scenario: Scenario, room: float, rate_rps: float, lost: float) -> bool:
    """Whether so many come that few enough are lost, where batches take a part of the SLO."""
    budgets = stage_budgets(scenario)
    rates = {number: each.rps for number, each in budgets.items()}
    slower = _slower(scenario)
    for budget in budgets.values():
        budget.rps *= rate_rps
        budget.plan_ns = [int(slower * each_ns) for each_ns in budget.plan_ns]
    _hand_on(scenario, budgets)
    timed = [(each.graph, int(room * each.graph.slo_ns)) for each in scenario.pipelines]
    fit(timed, budgets)
    polish(timed, budgets, rates)
    left_ns = _left_ns(scenario, budgets)
    if left_ns < 0:
        return False
    work_s = {number: each.each_ns / SECOND for number, each in budgets.items()}
    mean_s = sum(rates[number] * each for number, each in work_s.items()) + direct_s(scenario)
    shares = zip(scenario.pipelines, scenario.pipeline_shares, strict=True)
    lump_s = sum(share * square_s(each, work_s) for each, share in shares) / mean_s
    lumps = left_ns * scenario.backends / (SECOND * lump_s)
    return rate_rps * mean_s <= load_of(lumps, lost) * scenario.backends


def _slower(scenario: Scenario) -> float:
    """How many times as long as the profile says runs take on average: jitter is half-normal."""
    return 1.0 + max(spread for _, spread in scenario.jitter) * sqrt(2.0 / pi)


def _hand_on(scenario: Scenario, budgets: dict[int, StageBudget]) -> None:
    """Let results of one batch come together: they wait for nobody."""
    for spec in scenario.pipelines:
        stages = spec.graph.stages
        for stage, row in zip(stages, spec.fan_outs, strict=True):
            for child, fan_out in zip(stage.children, row, strict=True):
                makers = budgets[stages[child].application].makers
                makers.append((budgets[stage.application], fan_out.mean))


def _left_ns(scenario: Scenario, budgets: dict[int, StageBudget]) -> int:
    """The least time that batches leave a query of any pipeline to wait."""
    return min(
        (
            each.graph.slo_ns - each.graph.longest_ns(lambda number: _needs_ns(budgets[number]))[0]
            for each in scenario.pipelines
        ),
        default=NEVER,
    )


def _needs_ns(budget: StageBudget) -> int:
    return budget.needs_ns(budget.size)
