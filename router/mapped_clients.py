"""Clients that tell of their network, and are told which input size to send."""

from router.assembly import Assembly
from router.client_wishes import ClientWishes
from router.core.events import ClientReport
from router.links.messages import Report
from router.policies.jellyfish.problem import Plan
from router.policies.jellyfish.source import Jellyfish, Question

CLIENTS_MAX = 100_000
"""Whose frontend is remembered, to tell them which input size to send."""
NOBODY = -1


class MappedClients:
    """Hands reports to the engine, and plans that are made off the request path: whoever created
    the router asks for the questions and brings the answers."""

    def __init__(self, built: Assembly) -> None:
        self.built = built
        self.wishes = ClientWishes(built.families, built.variants)
        self.frontends: dict[int, int] = {}
        """Of each client, the last that reported last."""
        self.sources = {
            number: source
            for number, source in enumerate(built.engine.sources)
            if isinstance(source, Jellyfish)
        }
        for source in self.sources.values():
            source.plan_elsewhere()

    def frontend_of(self, client: int) -> int:
        """The frontend it last reported through; `NOBODY` where it never did."""
        return self.frontends.get(client, NOBODY)

    def on_report(self, now_ns: int, frontend: int, said: Report) -> None:
        application = self.built.applications.get(said.application)
        if application is None:
            return
        # The latest last, so that the first is the one to forget.
        self.frontends.pop(said.client, None)
        self.frontends[said.client] = frontend
        if len(self.frontends) > CLIENTS_MAX:
            del self.frontends[next(iter(self.frontends))]
        pinned = -1
        if said.pinned:
            # A name that nobody has pins to nothing: such a client is told that it is not served.
            found = self.wishes.allowed(application, 0.0, said.pinned)
            pinned = min(found) if found else len(self.built.variants)
        self.built.engine.on_report(
            now_ns,
            application,
            ClientReport(
                said.client,
                said.slo_ns,
                said.fps,
                said.bandwidth_bps,
                said.input_size,
                said.frame_bits,
                said.round_trip_ns,
                said.accuracy_floor,
                pinned,
            ),
        )

    def questions(self, now_ns: int) -> dict[int, Question]:
        """What the mapping of each application's clients is to be decided from now."""
        return {
            number: source.question(now_ns)
            for number, source in self.sources.items()
            if source.clients
        }

    def take_plans(self, now_ns: int, plans: dict[int, Plan]) -> None:
        for number, plan in plans.items():
            source = self.sources[number]
            source.desk.refresh(now_ns, source, source.take_plan(now_ns, plan))
