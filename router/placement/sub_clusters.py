"""Sub-clusters: the applications that each serves, the backends it holds, moves without a gap.

Pure: events and a time in, `Load` and `Unload` effects into the engine's outbox. A model is loaded
on every backend of its new home while the old one still serves it, then served there, and only
then unloaded where it was, once no batch of it is left.
"""

from collections.abc import Mapping, Sequence

from fermata.router.core.engine import Engine
from fermata.router.core.events import Load, Unload


class SubClusters:
    """The placement of one router, and what is under way to change it."""

    def __init__(self, engine: Engine, variants_of: Sequence[Sequence[int]]) -> None:
        self.engine = engine
        self.variants_of = [frozenset(variants) for variants in variants_of]
        """By application."""
        self.home = [0] * len(variants_of)
        """The sub-cluster that serves each application now."""
        self.going: dict[int, int] = {}
        """Applications on their way, with their new home."""
        self.of_backend: dict[int, int] = {}
        self.held: dict[int, frozenset[int]] = {}
        """Variants loaded, by backend."""
        self.asked: dict[int, set[int]] = {}
        """Loads under way, by backend."""
        self.leaving: dict[int, int] = {}
        """Backends that end their batches before they serve another sub-cluster."""
        self.wanted = [1.0] * len(engine.ranks)
        """Backends each sub-cluster should have, relative to one another."""
        self.counts = [0] * len(engine.ranks)
        """Backends that each has, or is about to have."""
        self.needed: dict[int, frozenset[int]] = {}
        """Variants that backends of a sub-cluster have to hold, as far as looked up."""
        self.untidy: set[int] = set()
        """Backends that unload something once no batch of it is left."""

    # Backends

    def take(self, backend: int, held: frozenset[int]) -> int:
        """The sub-cluster of a backend that has come up: the one that misses it most."""
        counts = self.counts
        rank = min(
            range(len(counts)), key=lambda each: (counts[each] + 1) / max(self.wanted[each], 1e-9)
        )
        self.of_backend[backend] = rank
        counts[rank] += 1
        self.held[backend] = held
        self.asked[backend] = set()
        return rank

    def on_held(self, now_ns: int, backend: int, held: frozenset[int]) -> None:
        """A backend says what it holds: after it has come up, and after each load."""
        if backend not in self.of_backend:
            # A load has ended there after it was retired, or began to drain.
            return
        self.held[backend] = held
        self.asked[backend] -= held
        self._tidy(backend)
        self._arrive(now_ns)

    def on_gone(self, now_ns: int, backend: int) -> None:
        """A backend drains or has died."""
        if backend in self.of_backend:
            self.counts[self.leaving.get(backend, self.of_backend[backend])] -= 1
        self.untidy.discard(backend)
        for table in (self.of_backend, self.held, self.asked, self.leaving):
            table.pop(backend, None)
        self._arrive(now_ns)

    def on_idle(self, now_ns: int, backend: int) -> None:
        """A batch has ended there: what waited for that can go on."""
        if backend in self.leaving:
            self._leave(now_ns, backend)
        elif backend in self.untidy:
            self._tidy(backend)

    # Plans

    def place(self, now_ns: int, home: Mapping[int, int]) -> None:
        """Serve these applications from these sub-clusters, as soon as all is loaded there."""
        for application, rank in home.items():
            if self.home[application] != rank:
                self.going[application] = rank
            else:
                self.going.pop(application, None)
        self.needed.clear()
        for backend in self.of_backend:
            self._tidy(backend)
        self._arrive(now_ns)

    def weigh(self, now_ns: int, wanted: Sequence[float]) -> None:
        """Sub-clusters should have so many backends; one that has too many gives one away."""
        self.wanted = list(wanted)
        if self.leaving or len(wanted) < 2:
            return
        counts = self.counts
        whole = sum(counts) / max(sum(wanted), 1e-9)
        spare = [count - whole * want for count, want in zip(counts, wanted, strict=True)]
        richest = max(range(len(spare)), key=lambda rank: spare[rank])
        poorest = min(range(len(spare)), key=lambda rank: spare[rank])
        # Below a whole backend the next look would send it back.
        if spare[richest] >= 0.75 and spare[poorest] <= -0.75 and counts[richest] > 1:
            backend = max(each for each, rank in self.of_backend.items() if rank == richest)
            self.leaving[backend] = poorest
            counts[richest] -= 1
            counts[poorest] += 1
            self.engine.on_drain(now_ns, backend)
            self._leave(now_ns, backend)

    def _leave(self, now_ns: int, backend: int) -> None:
        state = self.engine.backend(backend)
        if state.running is not None or state.queued is not None:
            return
        rank, kind = self.leaving.pop(backend), state.kind
        self.engine.on_backend_down(now_ns, backend)
        self.of_backend[backend] = rank
        held = self.held[backend]
        self.engine.on_backend_up(now_ns, backend, kind=kind, rank=rank, resident=held)
        self._tidy(backend)
        self._arrive(now_ns)

    # Loading and unloading

    def _needed(self, rank: int) -> frozenset[int]:
        """The variants that every backend of a sub-cluster has to hold."""
        if rank not in self.needed:
            self.needed[rank] = frozenset[int]().union(
                *(
                    variants
                    for application, variants in enumerate(self.variants_of)
                    if rank in (self.home[application], self.going.get(application))
                )
            )
        return self.needed[rank]

    def _tidy(self, backend: int) -> None:
        """Load what is missing there; then unload what is neither needed nor in a batch."""
        needed = self._needed(self.of_backend[backend])
        held, asked = self.held[backend], self.asked[backend]
        self.untidy.discard(backend)
        effects = self.engine.outbox.effects
        for variant in sorted(needed - held - asked):
            asked.add(variant)
            effects.append(Load(backend, variant))
        if not needed <= held:
            return
        state = self.engine.backend(backend)
        used = {batch.variant for batch in (state.running, state.queued) if batch is not None}
        # A backend that says it holds nothing says that it drains: one without models keeps them.
        if needed and used & held - needed:
            self.untidy.add(backend)
        for variant in sorted(held - needed - used) if needed else ():
            self.held[backend] -= {variant}
            state.lane.hold(state, self.held[backend])
            effects.append(Unload(backend, variant))

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
