"""A live router with two stages of pipelines, in virtual time."""

import msgspec
from router_world import TABLE, FakeLink, FakeWake, World, rid

from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig
from fermata.router.core.queries.pipeline import Pipeline, Stage
from fermata.router.links.messages import (
    Done,
    Dropped,
    HandedOn,
    Payload,
    QueryPart,
    Ready,
    Run,
    Submit,
)
from fermata.router.live.driver import LiveRouter
from fermata.router.live.requests.queries import LiveQueries
from fermata.router.policies.application import ApplicationSpec, VariantSpec

CHAIN = Pipeline((Stage(0, (1,)), Stage(1)), ms(200))
GAPS = Pipeline(CHAIN.stages, ms(200), partial=True)
JOINED = Pipeline((Stage(0, (1, 2)), Stage(1, (2,)), Stage(0, join=True)), ms(200), partial=True)
SIDE_JOIN = Pipeline((Stage(0, (1, 2)), Stage(1), Stage(0, join=True)), ms(200))
"""Its join waits for the first stage alone, so that it is due along with the parts of the next."""
CALLED = Pipeline(CHAIN.stages, ms(200), called=True)
NAMES = ("detect", "classify")
QID = 900
"""Counter of the query whose function calls stages."""


class PipelineWorld(World):
    """A router with two stages in virtual time."""

    tenant = 0
    """The tenant of whatever is submitted from now on."""
    client = 0
    """Its stream."""

    def __init__(self, pipeline: Pipeline = CHAIN, backends: int = 1, moves: bool = False) -> None:
        self.now_ns = ms(1000)
        self.soon = []
        self.wakes: list[FakeWake] = []
        applications = tuple(
            ApplicationSpec(
                name,
                ms(200),
                (VariantSpec(name[0], TABLE),),
                policy="stages",
                policy_options={"hold": "auto"},
            )
            for name in NAMES
        )
        config = RouterConfig(
            applications,
            lead_ns=0,
            fair_shares=True,
            moves=moves,
            pipelines={"objects": pipeline},
        )
        self.router = LiveRouter(config, 3, lambda: self.now_ns, self.soon.append, self._wake)
        self.frontend = self.link("frontend", 2)
        self.backends = [self.link("backend", 5 + number) for number in range(backends)]
        for each in self.backends:
            self.hear(each, Ready("emulated", ("d", "c")))

    @property
    def queries(self) -> LiveQueries:
        assert self.router.queries is not None
        return self.router.queries

    def query(self, counter: int, slo_ns: int = ms(200)) -> None:
        self.hear(self.frontend, self.part(counter, 0, -1, slo_ns))

    def part(self, counter: int, stage: int, parent: int, slo_ns: int = ms(200)) -> Submit:
        name = NAMES[0 if stage == 2 else stage]
        place = Payload(rid(counter), "FP32", (1,), segment="s", length=4)
        part = QueryPart("objects", stage, parent if parent < 0 else rid(parent))
        given = rid(counter), name, slo_ns, slo_ns, self.client
        return Submit(*given, payload=place, part=part, tenant=self.tenant)

    def call(self, *calls: tuple[int, int], slo_ns: int = ms(200), begins: bool = False) -> None:
        """The function of the only query calls stages at once: (request, stage) each."""
        self.hear(self.frontend, *[self.a_call(*each, slo_ns, begins) for each in calls])

    def a_call(self, counter: int, stage: int, slo_ns: int, begins: bool = False) -> Submit:
        part = QueryPart("objects", stage, -1 if begins else rid(QID), rid(QID))
        place = Payload(rid(counter), "FP32", (1,), segment="s", length=4)
        given = rid(counter), NAMES[stage], slo_ns, slo_ns, self.client
        return Submit(*given, payload=place, part=part)

    def hand_on(self, parent: int, *counters: int, stage: int = 1, lost: str = "") -> None:
        parts = [self.part(each, stage, parent) for each in counters]
        if len(parts) > 1:
            # As frontends submit them.
            beside = tuple(each.payload for each in parts[1:] if each.payload is not None)
            parts = [msgspec.structs.replace(parts[0], beside=beside)]
        self.hear(self.frontend, *parts, HandedOn(rid(parent), lost))

    def begin(self, *counters: int) -> None:
        """Run the first stage of a query, whose result makes these parts."""
        self.query(0)
        self.run()
        self.hand_on(0, *counters)

    def runs(self) -> list[tuple[FakeLink, Run]]:
        """Batches that backends were sent since the last call, within 40 ms."""
        self.advance(ms(40))
        return [(each, run) for each in self.backends for run in each.take(Run)]

    def run(self) -> list[int]:
        """Run the batches that are due; returns the requests of all."""
        ran: list[int] = []
        for link, order in self.runs():
            self.hear(link, Done(order.batch, ms(5), 0))
            ran += [each - rid(0) for each in order.rids]
        return ran

    def dropped(self) -> dict[int, str]:
        return {each.rid - rid(0): each.reason for each in self.frontend.take(Dropped)}

    def ended(self) -> dict[str, int]:
        return self.queries.outcomes[0]

    def nothing_is_left(self) -> None:
        table, outbox = self.queries.table, self.router.engine.outbox
        left = [
            table.queries,
            table.parts,
            self.queries.arrived,
            outbox.queued,
            self.queries.doubts,
            self.queries.spent_ns,
        ]
        assert left == [{}] * len(left)
        # Backends may still have some that are of no use any more.
        assert table.in_vain.keys() <= self.router.fleet.in_flight.rids
        assert not self.queries.waiting
        assert not self.queries.ran_last
        assert not self.queries.calling
        assert not self.queries.handed
        assert not table.given_up
        assert not any(any(flow.open) for flow in table.flows)
