"""The highest rate of queries that backends could serve: the largest batches that fit, no waiting.

Every way through a pipeline ends within its SLO, nothing waits for a batch or for a backend, and no
backend ever idles.
"""

from itertools import product

from fermata.foundation.units import SECOND
from fermata.router.core.queries.budgets import StageBudget, Timed, fit
from fermata.router.core.queries.pipeline import FanOut, visits
from fermata.simulator.assembly import batch_size_max
from fermata.simulator.scenario.pipeline_spec import PipelineSpec
from fermata.simulator.scenario.scenario import Scenario

ROUNDS = 64
"""Rounds in which single batches are changed for the better."""


def stage_counts(spec: PipelineSpec) -> list[float]:
    """By stage: requests of one query there, at the largest fan-out of any time."""
    return visits(spec.graph, [[FanOut(each.mean) for each in row] for row in spec.fan_outs])


def stage_budgets(scenario: Scenario, turns: int = 1) -> dict[int, StageBudget]:
    """By application that runs a stage: its requests for each request that arrives at all."""
    found: dict[int, StageBudget] = {}
    for spec, share in zip(scenario.pipelines, scenario.pipeline_shares, strict=True):
        for stage, count in zip(spec.graph.stages, stage_counts(spec), strict=True):
            if stage.application not in found:
                variant = scenario.applications[stage.application].variants[0]
                assert variant.profile is not None
                size_max = batch_size_max(variant, spec.graph.slo_ns)
                table = [0, *variant.profile.table_ns(size_max)]
                found[stage.application] = StageBudget(table, turns=turns)
            found[stage.application].rps += share * count
    return found


def bound_rps(scenario: Scenario) -> float:
    """Requests of all kinds a second, at best."""
    budgets = stage_budgets(scenario)
    rates = {application: budget.rps for application, budget in budgets.items()}
    for budget in budgets.values():
        # Nothing waits for a batch to fill: only the ratio of the rates counts.
        budget.rps *= 1e12
    timed = [(spec.graph, spec.graph.slo_ns) for spec in scenario.pipelines]
    fit(timed, budgets)
    polish(timed, budgets, rates)
    each_s = sum(rates[number] * budget.each_ns for number, budget in budgets.items()) / SECOND
    return scenario.backends / (each_s + direct_s(scenario))


def direct_s(scenario: Scenario) -> float:
    """Backend time of direct requests, for each request that arrives at all."""
    total = 0.0
    for application, share in zip(scenario.applications, scenario.shares, strict=True):
        profile = application.variants[0].profile
        if share > 0.0 and profile is not None:
            size = batch_size_max(application.variants[0], application.slo_ns)
            total += share * profile.latency_ns(size) / size / SECOND
    return total


def polish(timed: Timed, budgets: dict[int, StageBudget], rates: dict[int, float]) -> None:
    """Grow one batch at the cost of another while that saves time: growing alone gets stuck."""

    def needs_ns(application: int) -> int:
        return budgets[application].needs_ns(budgets[application].size)

    def fits() -> bool:
        return all(pipeline.longest_ns(needs_ns)[0] <= time_ns for pipeline, time_ns in timed)

    def cost() -> float:
        return sum(rates[number] * budget.each_ns for number, budget in budgets.items())

    for _ in range(ROUNDS):
        better = False
        for one, other in product(budgets.values(), repeat=2):
            before = one.size, other.size, cost()
            one.size = min(one.size + 1, len(one.plan_ns) - 1)
            while one is not other and not fits() and other.size > 1:
                other.size -= 1
            if fits() and cost() < before[2]:
                better = True
            else:
                one.size, other.size = before[0], before[1]
        if not better:
            return
