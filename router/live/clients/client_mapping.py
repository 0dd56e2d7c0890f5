"""Clients that report their network, and are advised of an input size."""

from collections.abc import Callable

from fermata.foundation.units import NEVER
from fermata.router.assembly import Assembly
from fermata.router.core.events import Advise, ClientReport
from fermata.router.links.messages import ClientNetworkReport, InputSizeAdvice
from fermata.router.live.clients.allowed_variants import AllowedVariants
from fermata.router.live.fleet.peers import LinkPeer
from fermata.router.policies.jellyfish.mapping_problem import Assignment, MappingProblem
from fermata.router.policies.jellyfish.source import Jellyfish

MappingProblems = dict[int, MappingProblem]
"""By application."""
Assignments = dict[int, Assignment]
"""By application."""


def nothing() -> None:
    """Do nothing."""


class ClientMapping:
    """Hands reports and plans to the engine. Plans are made off the request path: the control plane
    fetches the problems and brings the answers."""

    def __init__(self, built: Assembly, clients_max: int = 100_000) -> None:
        """The frontends of `clients_max` clients are kept, to advise these of an input size."""
        self.built = built
        self.clients_max = clients_max
        self.wishes = AllowedVariants(built.families, built.variants)
        self.names = {number: name for name, number in built.applications.items()}
        self.frontends: dict[tuple[int, int], LinkPeer] = {}
        """By application and client: the link of its last report, in the order of those."""
        self.called: dict[tuple[int, int], str] = {}
        """The names of the same clients, where they have any."""
        self.on_urgent: Callable[[], None] = nothing
        """Called when the last decision holds no more, and another one is due soon."""
        self.sources: dict[int, Jellyfish] = {}
        self.renew()

    def renew(self) -> None:
        """Find the sources that map clients; policies have changed."""
        known = self.sources
        self.sources = {
            number: source
            for number, source in enumerate(self.built.engine.sources)
            if isinstance(source, Jellyfish)
        }
        for number, source in self.sources.items():
            if known.get(number) is not source:
                source.plan_elsewhere()

    def advice(self, advise: Advise) -> tuple[LinkPeer | None, InputSizeAdvice]:
        """The message, and the link that the client last reported on; None where it never did."""
        return self.frontends.get((advise.application, advise.client)), InputSizeAdvice(
            self.names[advise.application],
            advise.client,
            advise.input_size,
            advise.network_ns,
            advise.served,
        )

    def on_away(self, applications: frozenset[int]) -> None:
        """Forget who reports for applications that live at other routers, which advise now."""
        gone = [who for who in self.frontends if who[0] in applications]
        for who in gone:
            del self.frontends[who]
            self.called.pop(who, None)

    def on_report(self, now_ns: int, frontend: LinkPeer, said: ClientNetworkReport) -> None:
        application = self.built.applications.get(said.application)
        if application is None or application in self.built.engine.away:
            return
        # The latest last, so that the first is the one to forget.
        who = (application, said.client)
        before = self.frontends.pop(who, None)
        self.frontends[who] = frontend
        if said.name:
            self.called[who] = said.name
        if len(self.frontends) > self.clients_max:
            oldest = next(iter(self.frontends))
            del self.frontends[oldest]
            self.called.pop(oldest, None)
        pinned = -1
        if said.pinned:
            # A name that no variant has pins to nothing: such a client hears that it is not served.
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
                said.source_size,
            ),
        )
        if before is not frontend and application in self.sources:
            # Advice is told when it changes, and this frontend has not heard it.
            self.sources[application].advise_again(said.client)
        if self.urgent:
            self.on_urgent()

    @property
    def urgent(self) -> bool:
        """Whether the last decision holds no more."""
        return any(source.urgent and source.clients for source in self.sources.values())

    def due_at_ns(self) -> int:
        """Time of the next decision on the mapping of an application's clients."""
        return min((source.plan_due_at_ns for source in self.sources.values()), default=NEVER)

    def questions(self, now_ns: int) -> MappingProblems:
        """Problems of the mappings that are due."""
        return {
            number: source.question(now_ns)
            for number, source in self.sources.items()
            if source.plan_due_at_ns <= now_ns
        }

    def take_plans(self, now_ns: int, plans: Assignments) -> None:
        for number, plan in plans.items():
            source = self.sources[number]
            source.desk.refresh(now_ns, source, source.take_plan(now_ns, plan))
