"""Lead time: how long before its start a batch has to be decided on, learnt from what happened."""

from bisect import bisect_left, insort_right
from collections import Counter, deque
from collections.abc import Collection, Set
from dataclasses import dataclass

from fermata.foundation.units import SECOND
from fermata.router.assembly import Assembly, RouterConfig
from fermata.router.core.events import Batch, Request
from fermata.router.live.lead.application_lead import ApplicationLead
from fermata.router.live.lead.fetch_times import STEP_NS, WINDOW


@dataclass(frozen=True, slots=True)
class LeadTimeOptions:
    """Constants of the estimate."""

    late_quantile: float = 0.9
    """Quantile of the timers' lateness that a lead allows for."""
    late_memory_ns: int = SECOND
    """Half of the timers are forgotten after so long."""
    link_weight: float = 0.1
    """Weight of a new value in the moving average of the way to a node."""


class QuantileWindow:
    """Quantiles of the most recent values."""

    __slots__ = ("ordered", "recent", "size")

    def __init__(self, size: int = WINDOW) -> None:
        self.size = size
        self.recent: deque[int] = deque()
        self.ordered: list[int] = []

    def add(self, value: int) -> None:
        self.recent.append(value)
        insort_right(self.ordered, value)
        if len(self.recent) > self.size:
            self._forget_oldest()

    def halve(self) -> None:
        """Forget the older half."""
        for _ in range(len(self.recent) // 2):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        del self.ordered[bisect_left(self.ordered, self.recent.popleft())]

    def clear(self) -> None:
        self.recent.clear()
        self.ordered.clear()

    def quantile(self, share: float, default: int = 0) -> int:
        count = len(self.ordered)
        return self.ordered[min(count - 1, int(share * count))] if count else default


class LeadTimeEstimator:
    """Sets the core's leads from dispatch, fetch and timer lateness of the recent past.

    A backend tells when a batch's inputs were there, counted from the arrival of the order: the
    fetch. The way there is seen on batches sent to idle backends only: what is left of the time
    from order to end, run and fetch aside, is the way there and back.
    """

    def __init__(
        self, config: RouterConfig, built: Assembly, options: LeadTimeOptions | None = None
    ) -> None:
        self.options = options or LeadTimeOptions()
        self.engine = built.engine
        self.variants = [family.variants for family in built.families]
        self.applications = [
            ApplicationLead(lead, served.slo_ns, config.lead_ns)
            for lead, served in zip(built.engine.leads, config.applications, strict=True)
        ]
        self.needs_ns = [0] * len(self.applications)
        """By application: the SLO from which on no pair of nodes is too slow."""
        self.planned_ns = [config.lead_ns] * len(self.applications)
        """By application: the smallest lead that waiting requests were planned with."""
        self.on_trial: set[int] = set()
        """Applications whose next dispatch ends a trial."""
        self.origins: frozenset[str] = frozenset()
        """Nodes that have frontends."""
        self.nodes: Counter[str] = Counter()
        """Number of backends on each node."""
        self.links_ns: dict[str, int] = {}
        """The way to the backends of each node; a moving average."""
        self.late = QuantileWindow()
        """Lateness of timers."""
        self.halve_late_at_ns = 0
        for application in range(len(self.applications)):
            self._set(0, application)

    @property
    def lead_ns(self) -> int:
        """The longest lead of any application."""
        return max(each.lead.ns(1) for each in self.applications)

    @property
    def link_ns(self) -> int:
        """The longest way to any node."""
        return max(self.links_ns.values(), default=0)

    # Backends

    def on_backend_up(self, backend: int, node: str) -> None:
        self.engine.nodes[backend] = node
        if node in self.origins:
            self.engine.near.add(backend)
        self.nodes[node] += 1

    def on_backend_gone(self, backend: int) -> None:
        node = self.engine.nodes.pop(backend)
        self.engine.near.discard(backend)
        self.nodes[node] -= 1
        if self.nodes[node] == 0:
            del self.nodes[node]

    # Frontends

    def on_origins(self, origins: Set[str]) -> None:
        """Requests come from these nodes. Inputs lie in memory of their frontend's node, so its
        backends are given first."""
        if origins != self.origins:
            self.origins = frozenset(origins)
            near = [each for each, node in self.engine.nodes.items() if node in origins]
            self.engine.on_near(near)

    # Events

    def on_timer(self, late_ns: int) -> None:
        """A timer was served that much after it was due."""
        self.late.add(late_ns)

    def on_dispatch(self, now_ns: int, application: int, node: str) -> None:
        """A batch goes to a backend on that node. Matters to applications in `on_trial` only."""
        if self.applications[application].on_dispatch(node):
            self._set(now_ns, application)
        self._note_trial(application)

    def on_batch(
        self,
        now_ns: int,
        batch: Batch,
        origins: Collection[str],
        node: str,
        fetch_ns: int,
        away_ns: int | None,
    ) -> None:
        """A batch was fetched from these nodes to that one. `away_ns` is order to end, less its
        run, or None where it had to wait for the one before."""
        if fetch_ns < 0:
            fetch_ns = 0
        link_ns = self.links_ns.get(node, 0)
        if away_ns is not None:
            known_ns, link_ns = link_ns, max(0, away_ns - fetch_ns) // 2
            self.links_ns[node] = known_ns + int(self.options.link_weight * (link_ns - known_ns))
        if not origins:
            return
        requests = batch.requests
        first = requests[0]
        known = self.applications[first.application]
        known.batches += 1
        known.ran_at_ns = now_ns
        room_ns = first.deadline_ns - first.arrived_at_ns - known.run_ns
        times = known.times_of(origins, node)
        if times.add(now_ns, len(requests), fetch_ns + link_ns, room_ns):
            known.nodes[node].changed = True
            self._set(now_ns, first.application)

    def on_late(self, now_ns: int, request: Request) -> None:
        """A request was dropped as hopeless, perhaps only because of the lead."""
        application = request.application
        slo_ns = request.deadline_ns - request.arrived_at_ns
        if self.applications[application].on_late(now_ns, slo_ns):
            self.late.clear()
            self._set(now_ns, application)

    # Decisions

    def refuses(self, now_ns: int, origin: str, request: Request) -> bool:
        """Whether a request's input, on this node, reaches no backend in time. To be asked where
        its SLO is below `needs_ns`."""
        application = request.application
        known, slo_ns = self.applications[application], request.expires_at_ns - now_ns
        if known.refuses(now_ns, origin, slo_ns, self.nodes):
            return True
        if known.trial is not None:
            self._set(now_ns, application)
        self._note_trial(application)
        return False

    def replan_waiting(self, now_ns: int, application: int) -> None:
        """Have waiting requests start sooner if the lead has grown since they were planned; else
        they would be dropped beside idle backends."""
        lead_ns = self.applications[application].lead.ns(1)
        if lead_ns - self.planned_ns[application] > STEP_NS:
            self.planned_ns[application] = lead_ns
            self.engine.on_plan(now_ns, application)

    def _set(self, now_ns: int, application: int) -> None:
        known, variants = self.applications[application], self.variants[application]
        by_kind = self.engine.costs.by_kind
        costs = [kind[each] for kind in by_kind for each in variants if each in kind]
        known.run_ns = min([cost.p50_ns[1] for cost in costs])
        known.plan_ns = min([cost.plan_ns[1] for cost in costs])
        if now_ns >= self.halve_late_at_ns:
            self.halve_late_at_ns = now_ns + self.options.late_memory_ns
            self.late.halve()
        known.set(now_ns, self.late.quantile(self.options.late_quantile), self.nodes)
        self.needs_ns[application] = known.run_ns + known.slowest_ns()
        planned_ns = self.planned_ns
        planned_ns[application] = min(planned_ns[application], known.lead.ns(1))
        self._note_trial(application)

    def _note_trial(self, application: int) -> None:
        known = self.applications[application]
        if known.trial is not None or known.tried is not None:
            self.on_trial.add(application)
        else:
            self.on_trial.discard(application)
