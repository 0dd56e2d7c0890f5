"""The lead of one application, from the fetch times between each pair of nodes."""

from collections.abc import Collection, Iterable

from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.core.lead import Lead
from fermata.router.live.lead.fetch_times import KNOWN, FetchTimes

UNUSED_NS = 10 * SECOND
"""A pair of nodes that has not been used for so long says nothing any more."""
STARVED_NS = ms(100)
"""With nothing run for so long while requests are dropped, the lead is doubted."""
RARELY = 256
"""Batches between two trials of a node that is not missed: each may cost its requests."""


class NodeLead:
    """Fetch times to the backends of one node."""

    __slots__ = ("changed", "lead", "origins", "slowest_ns", "usable", "used_at_ns")

    def __init__(self) -> None:
        self.origins: dict[str, FetchTimes] = {}
        """By the frontend's node."""
        self.lead = Lead()
        self.changed = True
        """The lead has to be set anew."""
        self.usable = True
        """Some origin's usual fetch leaves time to run."""
        self.slowest_ns = 0
        """The usual fetch of the slowest origin."""
        self.used_at_ns = 0

    def usual_ns(self, origin: str, node: str) -> int:
        """The usual fetch; without limit from an unknown origin elsewhere."""
        times = self.origins.get(origin)
        if times is None:
            return 0 if origin == node else NEVER
        return times.usual_ns

    def fastest(self) -> FetchTimes:
        return min(self.origins.values(), key=_usual_ns)

    def set(self, late_ns: int, run_room_ns: int, plan_room_ns: int) -> None:
        """Set the lead from the origins in use whose usual fetch leaves room for a run."""
        self.changed = False
        self.used_at_ns = max([times.used_at_ns for times in self.origins.values()])
        for origin, times in list(self.origins.items()):
            if times.used_at_ns < self.used_at_ns - UNUSED_NS:
                del self.origins[origin]
        near = [times for times in self.origins.values() if not times.too_slow(run_room_ns)]
        self.usable = bool(near)
        self.slowest_ns = max([times.usual_ns for times in self.origins.values()])
        self.lead = bounded(near or [self.fastest()], late_ns, plan_room_ns)


def bounded(origins: Iterable[FetchTimes], late_ns: int, room_ns: int) -> Lead:
    """The lead that nearly all fetches of these keep to. Where the usual one leaves room, rare slow
    ones take half of that at most: a lead without room would let nothing run to refute it."""
    start_ns = each_ns = usual_ns = 0
    for times in origins:
        start_ns = max(start_ns, times.start_ns)
        each_ns = max(each_ns, times.per_request_ns)
        if times.usual_ns <= room_ns or len(times.samples) >= KNOWN:
            usual_ns = max(usual_ns, times.usual_ns)
    start_ns += late_ns
    if usual_ns <= room_ns:
        start_ns = min(start_ns, (usual_ns + room_ns) // 2 - each_ns)
    return Lead(max(0, start_ns), each_ns)


def _usual_ns(times: FetchTimes) -> int:
    return times.usual_ns


def _alone_ns(lead: Lead) -> int:
    return lead.ns(1)


class ApplicationLead:
    """Learns by pairs of nodes, a frontend's and a backend's, and sets the core's lead.

    The core knows a batch's backend only at the grant, and frontends never. So a bid is planned
    with the longest lead of all nodes that have backends, and a grant with that of the very node.
    A batch gathers requests of all frontends, so on each node the slowest one in use counts.

    A pair whose usual fetch leaves no time to run is no part of the lead. Requests that could use
    nothing else are refused, and nodes that nothing else reaches get no batch, except for a trial
    now and then: the first fetch in time makes the pair usable again.
    """

    __slots__ = (
        "batches",
        "first_ns",
        "lead",
        "nodes",
        "plan_ns",
        "ran_at_ns",
        "run_ns",
        "slo_ns",
        "trial",
        "tried",
    )

    def __init__(self, lead: Lead, slo_ns: int, first_ns: int) -> None:
        self.lead = lead
        """The one that the core reads."""
        self.slo_ns = slo_ns
        self.first_ns = first_ns
        """Planned with while nothing is known."""
        self.run_ns = self.plan_ns = 0
        """Run time of one request on the fastest variant: as profiled, and as planned."""
        self.nodes: dict[str, NodeLead] = {}
        """By the backends' node."""
        self.ran_at_ns = 0
        """Time of the last batch's end."""
        self.batches = 0
        """Number of batches since a node was last tried beside usable ones."""
        self.trial: str | None = None
        """A node whose next batch is planned as if nothing were known of it."""
        self.tried: FetchTimes | None = None
        """A pair for which a request was let in, while nothing has been sent since."""

    def on_dispatch(self, node: str) -> bool:
        """End trials: a batch goes to this node. Return whether the lead has to be set anew."""
        self.tried = None
        if self.trial != node:
            return False
        self.trial = None
        return True

    def times_of(self, origins: Collection[str], node: str) -> FetchTimes:
        """Fetch times to a node from the slowest of these origins: what a batch with inputs from
        all of them has waited for."""
        there = self.nodes.get(node)
        if there is None:
            there = self.nodes[node] = NodeLead()
        if len(origins) == 1:
            (origin,) = origins
        else:
            origin = max(sorted(origins), key=lambda each: there.usual_ns(each, node))
        times = there.origins.get(origin)
        if times is None:
            times = there.origins[origin] = FetchTimes()
        return times

    def on_late(self, now_ns: int, slo_ns: int) -> bool:
        """Doubt the lead if a request with that SLO was dropped, nothing has run for a while and
        the lead may be why. Return whether it has to be set anew."""
        self.batches += RARELY
        if self.tried is not None:
            # The request that was let in may have been dropped: let in another.
            self.tried.try_at_ns = now_ns
            return False
        room_ns = slo_ns - self.run_ns
        starved = now_ns - self.ran_at_ns >= STARVED_NS
        if not starved or not 0 <= room_ns < 2 * self.lead.ns(1):
            return False
        self.ran_at_ns = now_ns
        fastest = {node: there.fastest() for node, there in self.nodes.items()}
        if fastest and all(times.too_slow(room_ns) for times in fastest.values()):
            nearest = min(fastest, key=lambda node: fastest[node].usual_ns)
            if fastest[nearest].try_again(now_ns):
                self.trial = nearest
            return True
        self.first_ns //= 2
        for there in self.nodes.values():
            there.changed = True
            for times in there.origins.values():
                times.forget_slower_half()
        return True

    def refuses(self, now_ns: int, origin: str, slo_ns: int, nodes: Collection[str]) -> bool:
        """Whether inputs of that origin come too late to every node with backends, and no trial
        is due."""
        room_ns = slo_ns - self.run_ns
        slow: dict[str, FetchTimes] = {}
        for node in nodes:
            there = self.nodes.get(node)
            times = None if there is None else there.origins.get(origin)
            if times is None or not times.too_slow(room_ns):
                return False
            slow[node] = times
        if not slow:
            return False
        nearest = min(slow, key=lambda node: slow[node].usual_ns)
        if not slow[nearest].try_again(now_ns):
            return True
        self.tried = slow[nearest]
        if self.lead.ns(1) > room_ns:
            self.trial = nearest
        return False

    def set(self, now_ns: int, late_ns: int, nodes: Collection[str]) -> None:
        """Set the core's lead for backends on these nodes, with timers late by so much."""
        run_room_ns, plan_room_ns = self.slo_ns - self.run_ns, self.slo_ns - self.plan_ns
        unknown = Lead(max(0, min(self.first_ns + late_ns, plan_room_ns // 2)))
        for gone in [node for node in self.nodes if node not in nodes]:
            del self.nodes[gone]
        if self.trial not in nodes:
            self.trial = None
        usable: list[Lead] = []
        by_node: dict[str, Lead] = {}
        for node in nodes:
            there = self.nodes.get(node)
            if there is not None and there.changed:
                there.set(late_ns, run_room_ns, plan_room_ns)
            if there is None or self._forgotten(now_ns, node, there):
                usable.append(unknown)
            else:
                by_node[node] = there.lead
                if there.usable:
                    usable.append(there.lead)
        if not usable:
            usable.append(min(by_node.values(), key=_alone_ns) if by_node else unknown)
        lead = self.lead
        lead.start_ns = max(each.start_ns for each in usable)
        lead.per_request_ns = max(each.per_request_ns for each in usable)
        lead.by_node = by_node if len(nodes) > 1 else {}

    def _forgotten(self, now_ns: int, node: str, there: NodeLead) -> bool:
        """Whether what is known of a node is too old, or the node is on trial from now on."""
        if self.trial is None and not there.usable and self.batches > RARELY:
            others = any(each.usable for each in self.nodes.values())
            if others and there.fastest().try_again(now_ns):
                self.batches = 0
                self.trial = node
        return self.trial == node or now_ns - there.used_at_ns > UNUSED_NS

    def slowest_ns(self) -> int:
        """The usual fetch of the slowest pair."""
        return max((there.slowest_ns for there in self.nodes.values()), default=0)
