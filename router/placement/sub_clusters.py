"""Sub-clusters: the applications that each serves, the backends it holds, moves without a gap.

Pure: events and a time in, `Load` and `Unload` effects into the engine's outbox. A model is loaded
on every backend of its new home while the old one still serves it, then served there, and only
then unloaded where it was, once no batch of it is left.

Before there is a plan nothing is loaded or unloaded. A router that takes over from another one
meanwhile serves applications where backends hold them.
"""

from collections.abc import Mapping, Sequence

from fermata.foundation.units import seconds
from fermata.router.core.engine import Engine
from fermata.router.core.events import Load, Unload
from fermata.router.core.timers import Timer
from fermata.router.placement.adoption import likest, renumbering

RETRY_NS, RETRY_NS_MAX = seconds(1), seconds(32)
"""Time until a load that has failed is tried again: at first, and after many failures."""


class _Retry(Timer):
    """Tries failed loads of one backend again."""

    __slots__ = ("backend", "failed", "sub_clusters", "wait_ns")

    def __init__(self, sub_clusters: "SubClusters", backend: int) -> None:
        super().__init__()
        self.sub_clusters = sub_clusters
        self.backend = backend
        self.failed = set[int]()
        self.wait_ns = RETRY_NS

    def fire(self, now_ns: int) -> None:
        self.failed.clear()
        self.wait_ns = min(2 * self.wait_ns, RETRY_NS_MAX)
        self.sub_clusters.try_again(self.backend)


class SubClusters:
    """The placement of one router, and what is under way to change it."""

    def __init__(self, engine: Engine, variants_of: Sequence[Sequence[int]]) -> None:
        self.engine = engine
        self.variants_of = [frozenset(variants) for variants in variants_of]
        """By application."""
        self.home = [0] * len(variants_of)
        """The sub-cluster that serves each application now."""
        self.placed: set[int] = set()
        """Applications whose home a plan has told, or the backends that hold them."""
        self.planned = False
        self.going: dict[int, int] = {}
        """Applications on their way, with their new home."""
        self.of_backend: dict[int, int] = {}
        self.held: dict[int, frozenset[int]] = {}
        """Variants loaded, by backend."""
        self.asked: dict[int, set[int]] = {}
        """Loads under way, by backend."""
        self.dropped: dict[int, frozenset[int]] = {}
        """Unloads under way, by backend."""
        self.retries: dict[int, _Retry] = {}
        """Loads that have failed, by backend."""
        self.leaving: dict[int, int] = {}
        """Backends that end their batches before they serve another sub-cluster."""
        self.wanted = [1.0] * len(engine.ranks)
        """Backends each sub-cluster should have, relative to one another."""
        self.counts = [0] * len(engine.ranks)
        """Backends that each has, or is about to have."""
        self.needed: dict[int, frozenset[int]] = {}
        """Variants that backends of a sub-cluster have to hold, as far as looked up."""
        self.order: dict[int, int] = {}
        """Places of variants in the order in which they are loaded, where there is one."""
        self.untidy: set[int] = set()
        """Backends that unload something once no batch of it is left."""

    # Backends

    def take(self, backend: int, held: frozenset[int]) -> int:
        """The sub-cluster of a backend that has come up: the one whose models it holds already,
        else the one that misses it most."""
        ranks, counts = range(len(self.counts)), self.counts
        by_need = sorted(
            ranks,
            key=lambda each: (
                self.planned and not self._needed(each),
                (counts[each] + 1) / max(self.wanted[each], 1e-9),
            ),
        )
        rank = likest(held, [(each, self._needed(each)) for each in by_need])
        if rank is None and held and not self.planned:
            # Another sub-cluster's: it is the first one of it here.
            rank = next((each for each in ranks if not counts[each]), None)
        rank = by_need[0] if rank is None else rank
        self.of_backend[backend] = rank
        counts[rank] += 1
        self.held[backend] = held
        self.asked[backend] = set()
        self.dropped[backend] = frozenset()
        return rank

    def kept(self, backend: int, held: frozenset[int]) -> frozenset[int]:
        """What it says it holds, but for what it was told to unload."""
        return held - self.dropped.get(backend, frozenset())

    def on_held(
        self,
        now_ns: int,
        backend: int,
        held: frozenset[int],
        failed: frozenset[int] = frozenset(),
    ) -> None:
        """A backend says what it holds, and what it could not load: after it has come up, and
        after each load and unload."""
        if backend not in self.of_backend:
            # A load has ended there after it was retired, or began to drain.
            return
        self.dropped[backend] &= held
        held = self.held[backend] = self.kept(backend, held)
        self._on_failed(now_ns, backend, self.asked[backend] & failed)
        self.asked[backend] -= held | failed
        if not self.planned:
            self._adopt(now_ns, backend)
        self._tidy(backend)
        self._arrive(now_ns)

    def _adopt(self, now_ns: int, backend: int) -> None:
        """Serve what the backend holds, and nobody has placed, where the backend is."""
        for application, variants in enumerate(self.variants_of):
            if application not in self.placed and variants <= self.held[backend]:
                self._settle(now_ns, application, self.of_backend[backend])

    def _settle(self, now_ns: int, application: int, rank: int) -> None:
        """Give an application its first home."""
        self.placed.add(application)
        self.home[application] = rank
        self.needed.clear()
        self.engine.move_application(now_ns, application, rank)

    def _on_failed(self, now_ns: int, backend: int, failed: set[int]) -> None:
        retry = self.retries.get(backend)
        if failed:
            if retry is None:
                retry = self.retries[backend] = _Retry(self, backend)
            retry.failed |= failed
            self.engine.timers.arm(retry, now_ns + retry.wait_ns)
        elif retry is not None and not self._needed(self.of_backend[backend]) - self.held[backend]:
            self._forget_failures(backend)

    def _forget_failures(self, backend: int) -> None:
        retry = self.retries.pop(backend, None)
        if retry is not None:
            self.engine.timers.disarm(retry)

    def try_again(self, backend: int) -> None:
        """Ask anew for what a backend could not load."""
        self._tidy(backend)

    def on_gone(self, now_ns: int, backend: int) -> None:
        """A backend drains or has died."""
        if backend in self.of_backend:
            self.counts[self.leaving.get(backend, self.of_backend[backend])] -= 1
        self.untidy.discard(backend)
        self._forget_failures(backend)
        for table in (self.of_backend, self.held, self.asked, self.dropped, self.leaving):
            table.pop(backend, None)
        self._relieve(now_ns)
        self._arrive(now_ns)

    def on_idle(self, now_ns: int, backend: int) -> None:
        """A batch has ended there: what waited for that can go on."""
        if backend in self.leaving:
            self._leave(now_ns, backend)
        elif backend in self.untidy:
            self._tidy(backend)

    # Plans

    def place(self, now_ns: int, home: Mapping[int, int], only: bool = False) -> None:
        """Serve these applications from these sub-clusters, as soon as all is loaded there. With
        `only`, all others live at other routers, and are unloaded."""
        if not self.planned:
            self._renumber(home)
        self.planned = True
        if only:
            self.placed &= home.keys()
            # With little room, what lives here comes before what is only on its way here.
            self.order = {
                variant: place
                for place, application in enumerate(home)
                for variant in self.variants_of[application]
            }
        for application, rank in home.items():
            if application not in self.placed:
                self._settle(now_ns, application, rank)
            elif self.home[application] != rank:
                self.going[application] = rank
            else:
                self.going.pop(application, None)
        self.needed.clear()
        self._relieve(now_ns)
        for backend in tuple(self.of_backend):
            self._tidy(backend)
        self._arrive(now_ns)

    def wanting(self) -> set[int]:
        """Applications here that some backend does not hold yet; all of them without any."""
        held = [self.held[each] for each in self.of_backend]
        return {
            application
            for application in self.placed
            if not (held and all(self.variants_of[application] <= each for each in held))
        }

    def _relieve(self, now_ns: int) -> None:
        """Give a sub-cluster that serves models and has no backend one of another's: of one that
        serves none, else of the largest."""
        bare = [rank for rank, count in enumerate(self.counts) if not count]
        for rank in bare if self.planned else ():
            if self._needed(rank):
                spare = [
                    (count > 0 and not self._needed(each), count)
                    for each, count in enumerate(self.counts)
                ]
                rich = max(range(len(spare)), key=spare.__getitem__)
                givers = self._members(rich)
                if givers and spare[rich] > (False, 1):
                    self._send(now_ns, givers[-1], rank)

    def _members(self, rank: int) -> list[int]:
        """Backends that a sub-cluster has, and will have."""
        of = self.of_backend
        return [each for each in sorted(of) if of[each] == rank and each not in self.leaving]

    def weigh(self, now_ns: int, wanted: Sequence[float]) -> None:
        """Sub-clusters should have so many backends; those that have too many give them away."""
        self.wanted = list(wanted)
        if len(wanted) < 2 or not self.planned:
            return
        counts, ranks = self.counts, range(len(wanted))
        whole = sum(counts) / max(sum(wanted), 1e-9)
        spare = [count - whole * want for count, want in zip(counts, wanted, strict=True)]
        members: dict[int, list[int]] = {rank: [] for rank in ranks}
        for backend, rank in sorted(self.of_backend.items()):
            if backend not in self.leaving:
                members[rank].append(backend)
        while True:
            richest = max(ranks, key=spare.__getitem__)
            poorest = min(ranks, key=spare.__getitem__)
            # Below a whole backend the next look would send it back.
            if spare[richest] < 0.75 or spare[poorest] > -0.75 or len(members[richest]) < 2:
                return
            self._send(now_ns, members[richest].pop(), poorest)
            spare[richest] -= 1
            spare[poorest] += 1

    def _send(self, now_ns: int, backend: int, rank: int) -> None:
        """Have a backend serve another sub-cluster once its batches have ended."""
        self.counts[self.of_backend[backend]] -= 1
        self.counts[rank] += 1
        self.leaving[backend] = rank
        self.engine.on_drain(now_ns, backend)
        self._leave(now_ns, backend)

    def _leave(self, now_ns: int, backend: int) -> None:
        state = self.engine.backend(backend)
        if state.batches():
            return
        rank, kind = self.leaving.pop(backend), state.kind
        self.engine.on_backend_down(now_ns, backend)
        self.of_backend[backend] = rank
        held = self.held[backend]
        self.engine.on_backend_up(now_ns, backend, kind=kind, rank=rank, resident=held)
        self._tidy(backend)
        self._arrive(now_ns)

    def _renumber(self, home: Mapping[int, int]) -> None:
        """Call adopted sub-clusters by the numbers that the plan has for them."""
        adopted = {application: self.home[application] for application in self.placed}
        new = renumbering(adopted, home, len(self.counts))
        ranks, counts = self.engine.ranks, self.counts
        ranks[:] = [ranks[new.index(rank)] for rank in range(len(ranks))]
        self.counts = [counts[new.index(rank)] for rank in range(len(counts))]
        self.home = [new[rank] for rank in self.home]
        for table in (self.of_backend, self.leaving):
            table.update({backend: new[rank] for backend, rank in table.items()})
        self.needed.clear()

    # Loading and unloading

    def _needed(self, rank: int) -> frozenset[int]:
        """The variants that every backend of a sub-cluster has to hold."""
        if rank not in self.needed:
            self.needed[rank] = frozenset[int]().union(
                *(
                    variants
                    for application, variants in enumerate(self.variants_of)
                    if application in self.placed
                    and rank in (self.home[application], self.going.get(application))
                )
            )
        return self.needed[rank]

    def _tidy(self, backend: int) -> None:
        """Unload what is neither needed there nor in a batch, and load what is missing."""
        if not self.planned:
            return
        needed = self._needed(self.of_backend[backend])
        state = self.engine.backend(backend)
        used = {batch.variant for batch in state.batches()}
        self.untidy.discard(backend)
        # One that has nothing to serve keeps what it has: the next plan may want it.
        surplus = self.held[backend] - needed if needed else frozenset[int]()
        if surplus & used:
            self.untidy.add(backend)
        effects = self.engine.outbox.effects
        # First: there may be no room for both.
        for variant in sorted(surplus - used):
            self.held[backend] -= {variant}
            self.dropped[backend] |= {variant}
            effects.append(Unload(backend, variant))
        if surplus - used:
            state.lane.hold(state, self.held[backend])
            self._forget_failures(backend)
        asked, retry = self.asked[backend], self.retries.get(backend)
        failed = set[int]() if retry is None else retry.failed
        missing, order = needed - self.held[backend] - asked - failed, self.order
        for variant in sorted(missing, key=lambda each: (order.get(each, 0), each)):
            asked.add(variant)
            self.dropped[backend] -= {variant}
            effects.append(Load(backend, variant))

    def _arrive(self, now_ns: int) -> None:
        """Switch the applications over whose variants every backend of their new home holds."""
        if not self.going:
            return
        for application, rank in sorted(self.going.items()):
            variants = self.variants_of[application]
            members = [each for each, where in self.of_backend.items() if where == rank]
            nowhere = self.home[application] not in self.of_backend.values()
            if not (members or nowhere):
                continue
            if all(variants <= self.held[each] for each in members):
                before = self.home[application]
                self.home[application] = rank
                del self.going[application]
                self.needed.clear()
                self.engine.move_application(now_ns, application, rank)
                for backend, where in self.of_backend.items():
                    if where == before:
                        self._tidy(backend)
