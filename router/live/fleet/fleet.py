"""The fleet of one router: its frontends and backends, and what these can serve."""

from collections.abc import Iterable

from fermata.router.assembly import Assembly, RouterConfig
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.health.availability import Availability
from fermata.router.health.recovery import Recovery
from fermata.router.links.closing import CloseCode
from fermata.router.links.messages import PLACES_FROM, FleetStatus, Message, Ready, frontend_of
from fermata.router.live.fleet.accelerator_types import AcceleratorTypes
from fermata.router.live.fleet.batch_limits import BatchSizeLimits
from fermata.router.live.fleet.in_flight import InFlight
from fermata.router.live.fleet.peers import BackendPeer, LinkPeer
from fermata.router.live.fleet.spares import Spares
from fermata.router.live.policy_change import serve_only
from fermata.router.live.separation import Separation
from fermata.router.placement.live_placement import LivePlacement


class Fleet:
    """State that the driver, the notifier and the supervisor share; the engine follows it."""

    def __init__(self, config: RouterConfig, built: Assembly) -> None:
        self.built = built
        self.engine = built.engine
        self.swaps = config.swap
        """Backends bring a model in when they run it, and none is resident before."""
        self.frontends: dict[int, LinkPeer] = {}
        self.backends: dict[int, BackendPeer] = {}
        self.spares = Spares()
        self.availability = Availability(
            {each.name: tuple(v.name for v in each.variants) for each in config.applications}
        )
        self.recovery = Recovery()
        self.separation = Separation(built.families)
        self.in_flight = InFlight()
        self.batch_limits = BatchSizeLimits(built)
        self.accelerator_types = AcceleratorTypes(built, config.kind)
        self.placement = LivePlacement(built)
        self.vacating: dict[int, LinkPeer] = {}
        """Backends that are to go once their sequences have ended."""
        self.uneven = False
        """Some owner has a backend too many, and none of them is idle."""
        self.rehoused = False
        """Other applications may live here than those that policies divide the backends by."""
        self.changed = False
        """A process has come or gone, or holds other models, since frontends heard of it."""
        self.touched: dict[LinkPeer, None] = {}
        """Links with messages of this tick; in order, so that a seed repeats."""

    # Messages

    def send(self, link: LinkPeer, message: Message) -> None:
        """Send a message, at the latest when the fleet is flushed."""
        link.send(message)
        self.touched[link] = None

    def flush(self) -> None:
        for link in self.touched:
            link.flush()
        self.touched.clear()

    # Frontends

    def frontend_of(self, rid: int) -> LinkPeer | None:
        """The link of the frontend that a request came from."""
        return self.frontends.get(frontend_of(rid))

    def has_frontend(self, link: LinkPeer) -> bool:
        """Whether this is the current link of its frontend."""
        return self.frontends.get(link.peer.number) is link

    def add_frontend(self, link: LinkPeer) -> None:
        """Take a frontend's link, in place of an earlier one of the same frontend."""
        number = link.peer.number
        for backend in self.backends.values():
            backend.met.pop(number, None)
        before = self.frontends.get(number)
        self.frontends[number] = link
        if before is not None:
            before.close(CloseCode.SUPERSEDED, f"frontend {number} has come anew")
        self.changed = True

    def remove_frontend(self, number: int) -> None:
        del self.frontends[number]
        self.changed = True

    @property
    def origins(self) -> set[str]:
        """Nodes that requests come from."""
        return self.nodes_of(self.frontends)

    def nodes_of(self, frontends: Iterable[int]) -> set[str]:
        """Nodes of those of these frontends that are linked."""
        here = self.frontends
        return {here[each].peer.node for each in frontends if each in here}

    # Backends

    def backend_of(self, link: LinkPeer) -> BackendPeer | None:
        """The backend of a link; None where it has not announced itself on this one."""
        found = self.backends.get(link.peer.number)
        return found if found is not None and found.link is link else None

    def state_of(self, backend: int) -> BackendState:
        """The backend as the engine sees it."""
        return self.engine.backend(backend)

    def on_ready(self, now_ns: int, link: LinkPeer, ready: Ready) -> bool:
        """Take a backend in, or note what it holds now; returns whether other applications are
        available for that."""
        number, names = link.peer.number, set(ready.variants)
        numbers = self.batch_limits.numbers
        held = frozenset(numbers[name] for name in names if name in numbers)
        kept = self.placement.kept(number, held)
        resident = None if len(kept) == len(self.built.variants) else kept
        self.changed = True
        news = self.availability.on_ready(number, names, dict(ready.trouble))
        self.batch_limits.on_ready(number, names, ready.limits)
        for frontend in self.separation.on_reach(number, ready.unreachable):
            # It may have forgotten the address of one that it tried in vain for long.
            if number in self.backends:
                self.backends[number].met.pop(frontend, None)
        if number not in self.backends:
            self.recovery.on_up(now_ns)
            self.backends[number] = BackendPeer(link)
            owner = self.built.ownership.take(number)
            kind = self.accelerator_types.number_of(ready)
            rank = self.placement.take(number, held)
            if self.swaps:
                resident = frozenset()
            self.engine.shallow.discard(number)
            if link.peer.protocol < PLACES_FROM:
                self.engine.shallow.add(number)
            self.engine.on_backend_up(now_ns, number, kind, rank, owner, resident)
        elif not self.swaps:
            self.engine.on_resident(now_ns, number, resident)
        self.backends[number].runs_in = dict(ready.runs_in)
        failed = frozenset(numbers[name] for name, _ in ready.trouble if name in numbers)
        self.placement.on_held(now_ns, number, held, failed)
        self.rehoused = self.rehoused or self.placement.moves
        self._equalise(number)
        return news

    def on_spare(self, link: LinkPeer, ready: Ready) -> None:
        """Take a spare in, or note what it holds now."""
        self.spares.on_ready(link, ready.spare_of, ready.kind, ready.variants)
        self._equalise(ready.spare_of)

    def _equalise(self, backend: int) -> None:
        """Have the spare of a backend hold what it holds."""
        if self.spares.waiting and backend in self.backends:
            for link, order in self.spares.equalise(backend, self.availability.names(backend)):
                self.send(link, order)

    def vacate(self, now_ns: int, link: LinkPeer) -> bool:
        """Whether a backend can go at once; one that holds sequences goes once they have ended."""
        number = link.peer.number
        empty = self.engine.vacate(now_ns, number)
        if not empty:
            self.vacating[number] = link
        return empty

    def vacated(self, now_ns: int) -> list[LinkPeer]:
        """Backends that were to go, and hold no sequence any more."""
        found: list[LinkPeer] = []
        for number, link in list(self.vacating.items()):
            if self.backend_of(link) is None:
                del self.vacating[number]
            elif self.engine.vacate(now_ns, number):
                found.append(self.vacating.pop(number))
        return found

    def drain(self, now_ns: int, backend: int) -> None:
        """Give a backend nothing more."""
        self.engine.on_drain(now_ns, backend)
        self.built.ownership.release(backend)
        self.placement.on_gone(now_ns, backend)
        self.changed = True
        self._even_out(now_ns, self.backends)

    def remove_backend(self, now_ns: int, backend: int, hung: bool = False) -> int:
        """Forget a backend, whose batch hangs or not; returns how many requests it held."""
        del self.backends[backend]
        if not self.state_of(backend).draining:
            self.recovery.on_lost(now_ns)
        self.batch_limits.on_gone(backend)
        self.separation.on_reach(backend, ())
        self.availability.on_backend_down(backend)
        state, held = self.state_of(backend), 0
        for batch in state.batches():
            held += len(batch.requests)
            self.in_flight.on_lost(batch)
        self.built.ownership.release(backend)
        self.engine.on_backend_down(now_ns, backend, hung)
        self.placement.on_gone(now_ns, backend)
        self.changed = True
        self._even_out(now_ns, self.backends)
        return held

    def on_idle(self, now_ns: int, backend: int) -> None:
        """A batch has ended there."""
        self.placement.on_idle(now_ns, backend)
        if self.uneven:
            self._even_out(now_ns, (backend,))

    def divide(self, now_ns: int) -> bool:
        """Have the policies of what lives here divide the backends, where some need their own;
        returns whether they do so in another way. The engine's effects must have been taken."""
        self.rehoused = False
        alike = not any(each.owns_backends or each.shares_backends for each in self.engine.sources)
        if alike and self.built.served is None:
            return False
        here = self.placement.here()
        if here == self.built.served:
            return False
        serve_only(now_ns, self.built, here)
        self.even_out(now_ns)
        return True

    def even_out(self, now_ns: int) -> None:
        """Owners have changed: give each its part, of busy backends as they end what they run."""
        self.changed = True
        self._even_out(now_ns, self.backends)

    def _even_out(self, now_ns: int, candidates: Iterable[int]) -> None:
        """Give idle backends of the owner that has too many to the one that has too few: nobody
        asks the router which one of them is to go."""
        ownership = self.built.ownership
        self.uneven = ownership.is_uneven()
        latest_first = sorted(candidates, reverse=True) if self.uneven else []
        while self.uneven:
            backend = self._spared(latest_first)
            if backend is None:
                return
            state, engine = self.state_of(backend), self.engine
            rank, resident = engine.ranks.index(engine.backend_rank[backend]), state.resident
            engine.on_backend_down(now_ns, backend)
            ownership.release(backend)
            owner = ownership.take(backend)
            engine.on_backend_up(now_ns, backend, state.kind, rank, owner, resident)
            self.uneven = ownership.is_uneven()

    def _spared(self, candidates: Iterable[int]) -> int | None:
        """The first idle one of these that belongs to the owner with too many; None without one."""
        ownership = self.built.ownership
        rich = ownership.richest()
        for backend in candidates:
            state = self.state_of(backend)
            # What failed there is held against it, unless nobody is left to try it again.
            doubted = state.errors > 0 and not ownership.has_left(rich)
            busy = state.running is not None or state.draining or doubted
            if not busy and ownership.owner[backend] == rich:
                return backend
        return None

    # Together

    def serving(self) -> list[int]:
        """Backends that may be given batches."""
        return [each for each in self.backends if not self.state_of(each).draining]

    def status(self) -> FleetStatus:
        """The report to frontends."""
        serving = self.serving()
        not_loaded = tuple(self.availability.not_loaded(serving))
        return FleetStatus(len(self.frontends), len(serving), not_loaded)

    def can_spare(self, backend: int) -> bool:
        """Whether every application that could run now still could without this backend."""
        self.availability.not_loaded(self.serving())
        return not self.availability.needs(backend)
