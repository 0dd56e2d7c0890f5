"""Queries of a simulated run: their fan-out is drawn, and their backend time is counted."""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fermata.autoscaler.readings import PipelineReading
from fermata.router.core.engine import Engine
from fermata.router.core.events import GOOD, Batch, is_bad
from fermata.router.core.queries.query_table import Query, QueryTable
from fermata.simulator.pipelines.rules import table_of
from fermata.simulator.scenario.pipeline_spec import FanOutSpec
from fermata.simulator.scenario.scenario import Scenario


@dataclass(slots=True)
class QueryLog:
    """One query as it went."""

    pipeline: int
    arrived_at_ns: int
    outcome: str = ""
    refused: bool = False
    spent_ns: float = 0.0
    """Backend time of all of its requests."""
    ran: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By stage: the accuracies of what has run its requests, summed, and how many have run. Empty
    where accuracies are not known."""

    @property
    def accuracy(self) -> float:
        """Accuracy of the whole: the product of the stages' mean accuracies."""
        return math.prod(total / count for total, count in self.ran.values())


@dataclass(slots=True)
class StageLog:
    """Requests of one stage of a pipeline that ran in the measured time."""

    requests: int = 0
    waited_ns: int = 0
    """From a request's arrival at the stage to the start of its batch."""
    spent_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class PipelineLog:
    """Queries by their place in the arrivals, and stages by pipeline."""

    queries: dict[int, QueryLog] = field(default_factory=dict)
    stages: tuple[tuple[StageLog, ...], ...] = ()


@dataclass(slots=True)
class QueryCount:
    """Queries of a pipeline that have ended."""

    good: int = 0
    bad: int = 0


class QueryPlay:
    """The query table's driver within the simulator's."""

    def __init__(
        self,
        scenario: Scenario,
        engine: Engine,
        serving: Sequence[int],
        new_rid: Callable[[], int],
    ) -> None:
        self.scenario = scenario
        self.table: QueryTable = table_of(scenario, engine, serving, new_rid)
        self.rng = random.Random(f"{scenario.seed} fan-out")
        stages = (tuple(StageLog() for _ in each.names) for each in scenario.pipelines)
        self.log = PipelineLog({}, tuple(stages))
        self.first = len(scenario.applications)
        """Arrivals from this number on are queries."""
        self.accuracies = [
            variant.accuracy for each in scenario.applications for variant in each.variants
        ]
        """By variant."""
        self.ended = [QueryCount() for _ in scenario.pipelines]
        """By pipeline."""
        self.owners: dict[int, tuple[int, int]] = {}
        """By request that runs: its query, and the stage."""
        self.results: deque[list[tuple[int, list[int]]]] = deque()
        """Those that are not handed on yet, a batch each."""
        self._plan_leads()

    def _plan_leads(self) -> None:
        """Plan with the time that results take to the next stage, as live routers learn it."""
        if not self.scenario.hand_on_ns:
            return
        for spec in self.scenario.pipelines:
            for stage in spec.graph.stages:
                if stage.children:
                    budget = self.table.budgets[stage.application]
                    lead_ns = self.table.engine.leads[stage.application].ns(1)
                    budget.lead_ns = lead_ns + self.scenario.hand_on_ns

    def arrive(
        self, now_ns: int, qid: int, number: int, slo_ns: int, client: int, priority: int
    ) -> None:
        """A query arrives; `number` is that of its pipeline among all that arrives."""
        pipeline = number - self.first
        self.log.queries[qid] = QueryLog(pipeline, now_ns)
        who = client, priority
        self.table.on_query(now_ns, Query(qid, pipeline, now_ns, now_ns + slo_ns, *who))

    def on_dispatch(self, batch: Batch) -> None:
        """Note whose requests a batch has: they may be nobody's any more when it ends."""
        for request in batch.requests:
            part = self.table.parts.get(request.rid)
            if part is not None:
                self.owners[request.rid] = part.query.qid, part.stage

    def on_done(self, now_ns: int, batch: Batch, started_at_ns: int, run_ns: int) -> bool:
        """A batch has ended; the engine has not been told yet. Returns whether some of its results
        are to be handed on later."""
        done: list[tuple[int, list[int]]] = []
        later: list[tuple[int, list[int]]] = []
        measured = started_at_ns >= self.scenario.warmup_ns
        accuracy = self.accuracies[batch.variant]
        for request in batch.requests:
            qid, stage = self.owners.pop(request.rid, (-1, 0))
            if qid < 0:
                continue
            log = self.log.queries[qid]
            spent_ns = run_ns * request.rows / batch.size
            log.spent_ns += spent_ns
            if accuracy is not None:
                total, count = log.ran.get(stage, (0.0, 0))
                log.ran[stage] = total + accuracy, count + 1
            if measured:
                of_stage = self.log.stages[log.pipeline][stage]
                of_stage.requests += 1
                of_stage.waited_ns += started_at_ns - request.arrived_at_ns
                of_stage.spent_ns += spent_ns
            spec = self.scenario.pipelines[log.pipeline]
            fan_out = [self.draw(now_ns, each) for each in spec.fan_outs[stage]]
            waits = self.scenario.hand_on_ns > 0 and spec.graph.follows(stage)
            (later if waits else done).append((request.rid, fan_out))
        if later:
            self.results.append(later)
        self.table.on_done(now_ns, done)
        return bool(later)

    def hand_on(self, now_ns: int) -> None:
        """Hand the results on that have waited for longest."""
        self.table.on_done(now_ns, self.results.popleft())

    def draw(self, now_ns: int, spec: FanOutSpec) -> int:
        """Requests that a result makes on an edge."""
        mean = spec.at(now_ns - self.scenario.warmup_ns)
        if spec.law == "fixed":
            return int(mean) + (self.rng.random() < mean % 1.0)
        return int(math.log(1.0 - self.rng.random()) / math.log(mean / (1.0 + mean))) if mean else 0

    def take_ended(self) -> list[Query]:
        """Queries that have ended since the last call, noted in the log."""
        ended = self.table.take_ended()
        for query in ended:
            log = self.log.queries[query.qid]
            log.outcome, log.refused = query.outcome, query.refused
            count = self.ended[query.pipeline]
            count.good += is_good(query)
            count.bad += is_bad(query.outcome)
        return ended

    def counts(self) -> dict[str, PipelineReading]:
        """Queries that have ended, as the control loop reads them."""
        names = [each.name for each in self.scenario.applications]
        return {
            spec.name: PipelineReading(
                frozenset(names[each] for each in spec.graph.applications), count.good, count.bad
            )
            for spec, count in zip(self.scenario.pipelines, self.ended, strict=True)
        }


def is_good(query: Query) -> bool:
    """Whether a query was answered in time."""
    return query.outcome == GOOD
