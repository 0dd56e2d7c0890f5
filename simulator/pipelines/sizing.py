"""Backends that the stages of pipelines need at a rate, in the batches that the router plans."""

from dataclasses import dataclass
from math import sqrt

from fermata.foundation.units import SECOND
from fermata.router.core.queries.budgets import StageBudget, fit
from fermata.router.core.queries.flow import RULES, Flow
from fermata.router.core.queries.pipeline import FanOut
from fermata.simulator.pipelines.bound import stage_budgets
from fermata.simulator.scenario.pipeline_spec import PipelineSpec
from fermata.simulator.scenario.scenario import Scenario

SPREAD = 1.0
"""Standard deviations of the work that comes within an SLO, for which there are backends beside
those of its mean. Queries come at random, and so does their fan-out: a few have most of the work.
With none of it even a plan of many backends loses several of a hundred queries."""


@dataclass(frozen=True, slots=True)
class StageNeed:
    """The needs of an application that runs stages, as far as those go."""

    rate_rps: float
    """Requests a second that queries make of it, at the largest fan-out of any time."""
    batch_size: int
    """The target batch."""
    utilisation: float
    """How busy its backends may be on average, so that there is room for chance."""


def stage_needs(scenario: Scenario) -> dict[int, StageNeed]:
    """By application that runs a stage, for the whole rate that the scenario has."""
    if not scenario.pipelines:
        return {}
    budgets = _planned(scenario)
    work_s = {number: _work_s(scenario, number, each.size) for number, each in budgets.items()}
    mean = sum(each.rps * work_s[number] for number, each in budgets.items())
    variance = 0.0
    for spec, rate_rps in _rates(scenario):
        # A Poisson number of queries comes within an SLO, each with work of its own.
        variance += rate_rps * square_s(spec, work_s) * SECOND / spec.graph.slo_ns
    room = SPREAD * sqrt(variance)
    utilisation = mean / (mean + room) if mean > 0.0 else 1.0
    return {number: StageNeed(each.rps, each.size, utilisation) for number, each in budgets.items()}


def _rates(scenario: Scenario) -> list[tuple[PipelineSpec, float]]:
    """The pipelines, each with its queries a second."""
    assert scenario.rate_rps is not None
    shares = zip(scenario.pipelines, scenario.pipeline_shares, strict=True)
    return [(spec, share * scenario.rate_rps) for spec, share in shares]


def _planned(scenario: Scenario) -> dict[int, StageBudget]:
    """Target batches as the router plans them, once it has learnt rates and fan-outs."""
    budgets = stage_budgets(scenario)
    for number, budget in budgets.items():
        profile = scenario.applications[number].profiles[0]
        budget.rps = 0.0
        if profile.linear_ns is None:
            budget.plan_ns = [0, *profile.table_ns_p99(len(budget.plan_ns) - 1)]
    flows: list[Flow] = []
    for spec, rate_rps in _rates(scenario):
        flow = Flow(spec.graph, RULES.share_first)
        flow.fan_outs = [[FanOut(each.mean) for each in row] for row in spec.fan_outs]
        flow.rate.rps = rate_rps
        flow.demand(budgets)
        flows.append(flow)
    fit([(each.planned, int(RULES.room * each.pipeline.slo_ns)) for each in flows], budgets)
    return budgets


def _work_s(scenario: Scenario, application: int, size: int) -> float:
    """Backend time of one request in batches of that size."""
    return scenario.applications[application].profiles[0].latency_ns(size) / (size * SECOND)


def square_s(spec: PipelineSpec, work_s: dict[int, float]) -> float:
    """Mean square of the backend time of a query, in seconds squared."""
    stages = spec.graph.stages
    mean, variance = [0.0] * len(stages), [0.0] * len(stages)
    for place in range(len(stages) - 1, -1, -1):
        mean[place] = work_s[stages[place].application]
        for fan_out, child in zip(spec.fan_outs[place], stages[place].children, strict=True):
            if not stages[child].join:
                mean[place] += fan_out.mean * mean[child]
                variance[place] += fan_out.mean * variance[child]
                variance[place] += fan_out.variance * mean[child] ** 2
    # A join runs once for a query, however many results come before it.
    once = (0, *spec.graph.joins)
    return sum(mean[each] for each in once) ** 2 + sum(variance[each] for each in once)
