"""Other rules for pipelines, as published, on the same engine and the same query table."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fermata.foundation.units import NEVER
from fermata.router.core.engine import Engine
from fermata.router.core.queries.aim import BatchAim
from fermata.router.core.queries.budgets import StageBudget, fit
from fermata.router.core.queries.flow import Flow
from fermata.router.core.queries.pipeline import Pipeline
from fermata.router.core.queries.query_table import Query, QueryTable
from fermata.simulator.pipelines.bound import stage_budgets
from fermata.simulator.scenario.pipeline_spec import PARTITIONED
from fermata.simulator.scenario.scenario import Scenario

MEMORY = 0.01
"""Weight of the newest request in PARD's mean time at a stage."""


class OpenTable(QueryTable):
    """No door: a query is dropped at whichever stage it cannot end in time any more."""

    chooses = False

    def admits(self, now_ns: int, query: Query, flow: Flow) -> bool:
        return True

    def limits(self, size: int, first: bool) -> tuple[int, int]:
        return NEVER, 1


class ProactiveTable(OpenTable):
    """PARD's early drop: a request must leave time for what stages behind it have lately taken,
    their queues included."""

    def attach(self) -> "ProactiveTable":
        self.taken_ns = [[0.0] * len(flow.pipeline.stages) for flow in self.flows]
        """By pipeline and stage: mean time from arrival to end."""
        return self

    def on_done(self, now_ns: int, done: Sequence[tuple[int, Sequence[int]]]) -> None:
        for rid, _ in done:
            part = self.parts.get(rid)
            if part is not None:
                taken_ns = self.taken_ns[part.query.pipeline]
                lately_ns = now_ns - part.made_at_ns
                taken_ns[part.stage] += MEMORY * (lately_ns - taken_ns[part.stage])
        super().on_done(now_ns, done)

    def dates(self, now_ns: int, query: Query, place: int) -> tuple[int, int]:
        deadline_ns, start_by_ns = super().dates(now_ns, query, place)
        behind_ns = self._behind_ns(query.pipeline, place)
        return min(deadline_ns, query.deadline_ns - behind_ns), start_by_ns

    def _behind_ns(self, pipeline: int, place: int) -> int:
        """Time that the stages behind one have lately taken, on the longest way."""
        stages, taken_ns = self.flows[pipeline].pipeline.stages, self.taken_ns[pipeline]
        behind = (
            int(taken_ns[child]) + self._behind_ns(pipeline, child)
            for child in stages[place].children
        )
        return max(behind, default=0)

    def limits(self, size: int, first: bool) -> tuple[int, int]:
        return NEVER, size


class EagerTable(OpenTable):
    """Stages that hold nobody: whoever waits leaves with the next backend."""

    def aim(self) -> None:
        for application in self.budgets:
            self.engine.sources[application].aim_at(BatchAim(1, NEVER, 1, 0))


class SplitTable(EagerTable):
    """A part of the SLO for each stage, whatever is left of the others'."""

    def split(self, budgets: dict[int, StageBudget] | None) -> "SplitTable":
        """Share each SLO by what these budgets need; evenly where there are none."""
        self.parts_ns = [
            _even_ns(flow.pipeline) if budgets is None else _needed_ns(flow.pipeline, budgets)
            for flow in self.flows
        ]
        return self

    def dates(self, now_ns: int, query: Query, place: int) -> tuple[int, int]:
        part_ns = self.parts_ns[query.pipeline][place]
        return min(now_ns + part_ns, query.deadline_ns), NEVER


class InheritTable(EagerTable):
    """Every stage has the deadline of the whole query."""

    def dates(self, now_ns: int, query: Query, place: int) -> tuple[int, int]:
        return query.deadline_ns, NEVER


def _even_ns(pipeline: Pipeline) -> list[int]:
    """The same time for every stage of the longest way through each."""
    depths = [len(_longest_to(pipeline, place)) for place in range(len(pipeline.stages))]
    heights = pipeline.longest_ns(lambda each: 1)
    return [
        pipeline.slo_ns // (depth + height - 1)
        for depth, height in zip(depths, heights, strict=True)
    ]


def _longest_to(pipeline: Pipeline, place: int) -> list[int]:
    """The longest way from the first stage to one, both included."""
    parents = [at for at, stage in enumerate(pipeline.stages) if place in stage.children]
    ways = [_longest_to(pipeline, parent) for parent in parents]
    return [*max(ways, key=len, default=[]), place]


def _needed_ns(pipeline: Pipeline, budgets: dict[int, StageBudget]) -> list[int]:
    """The SLO in proportion to what target batches need."""
    needs_ns = {number: each.needs_ns(each.size) for number, each in budgets.items()}
    longest_ns = pipeline.longest_ns(needs_ns.__getitem__)[0]
    scale = pipeline.slo_ns / max(1, longest_ns)
    return [int(scale * needs_ns[stage.application]) for stage in pipeline.stages]


def planned(scenario: Scenario, turns: int) -> dict[int, StageBudget]:
    """Target batches for the rate that the scenario has, as planners know it beforehand."""
    budgets = stage_budgets(scenario, turns)
    for budget in budgets.values():
        budget.rps *= scenario.rate_rps or 1.0
    fit([(spec.graph, spec.graph.slo_ns) for spec in scenario.pipelines], budgets)
    return budgets


def backends_by_stage(scenario: Scenario) -> tuple[int, ...]:
    """By backend: the application that it belongs to, in proportion to the planned work."""
    budgets = planned(scenario, turns=2)
    work = {number: each.rps * each.each_ns for number, each in budgets.items()}
    counts = dict.fromkeys(budgets, 1)
    for _ in range(scenario.backends - len(budgets)):
        neediest = max(counts, key=lambda number: work[number] / counts[number])
        counts[neediest] += 1
    return tuple(number for number, count in counts.items() for _ in range(count))


def with_homes(scenario: Scenario) -> Scenario:
    """The scenario, with a home for each backend where its rule gives stages their own."""
    if not scenario.pipelines or scenario.pipeline_rule not in PARTITIONED:
        return scenario
    homes = tuple(range(len(scenario.applications)))
    return replace(scenario, homes=homes, places=backends_by_stage(scenario))


def table_of(
    scenario: Scenario, engine: Engine, serving: Sequence[int], new_rid: Callable[[], int]
) -> QueryTable:
    """The query table of a scenario's rule."""
    given = engine, [spec.graph for spec in scenario.pipelines], serving, new_rid
    match scenario.pipeline_rule:
        case "door":
            return QueryTable(*given)
        case "per-stage":
            return OpenTable(*given)
        case "pard":
            return ProactiveTable(*given).attach()
        case "nexus":
            return SplitTable(*given).split(planned(scenario, turns=2))
        case "clipper++":
            return SplitTable(*given).split(None)
        case "inferline":
            return InheritTable(*given)
        case rule:
            raise AssertionError(f"pipeline_rule {rule!r} has no table")
