"""Deferred scheduling of a stage whose variant is chosen, batch by batch."""

from typing import Final

from fermata.router.core.events import Batch
from fermata.router.core.queries.aim import BatchAim
from fermata.router.core.slot import Slot
from fermata.router.core.source import SourceContext
from fermata.router.policies.deferred_kinds import KindCandidate, KindCandidates
from fermata.router.policies.deferred_options import DeferredOptions
from fermata.router.policies.family import Family
from fermata.router.policies.pipelines.stages import StageThread

OWED_BATCHES: Final = 4
"""Turns of a variant that are owed at most: a mix of long ago is of no concern."""


class VariantStage(StageThread):
    """A stage's source that runs the variant, or the two, that the query table asks for.

    A variant is bound to the candidate when that is formed. Requests that a better variant would
    not end in time are run by a cheaper one before they are dropped.
    """

    def __init__(self, family: Family, options: DeferredOptions) -> None:
        best_first = sorted(family.choices(), key=lambda place: -family.accuracy[place])
        self.choices = tuple(
            (family.variants[place], family.accuracy[place]) for place in best_first
        )
        may_run = frozenset(variant for variant, _ in self.choices)
        first = family.serving if family.serving in may_run else self.choices[0][0]
        super().__init__(first, options, None, family.slo_ns)
        self.may_run = may_run
        self.wanted = self.aim
        self.owed = 0.0
        """Requests that the other variant of the mix has to run to have its share."""
        self.slot: Slot | None = None
        """The backend that is offered, while it is."""
        self.unaimed = self.at_once
        """From which size on a candidate is not held, whatever the query table says."""

    def attach(self, desk: SourceContext) -> None:
        super().attach(desk)
        at = {variant: place for place, (variant, _) in enumerate(self.choices)}
        self.cheaper: dict[int, tuple[int, ...]] = {}
        """By variant: those that are less accurate, and quicker."""
        for variant, _ in self.choices:
            alone_ns = self.costs.of(variant).p50_ns[1]
            below = [each for each, _ in self.choices[at[variant] + 1 :]]
            quicker = [each for each in below if self.costs.of(each).p50_ns[1] < alone_ns]
            self.cheaper[variant] = tuple(quicker)

    # What to serve

    def aim_at(self, aim: BatchAim) -> None:
        if aim == self.wanted:
            return
        if aim.other is None or self.wanted.other is None:
            self.owed = 0.0
        self.wanted = aim
        self.aim = self._aim_of(self.variant)
        self._obey()

    def _aim_of(self, variant: int) -> BatchAim:
        other = self.wanted.other
        return other if other is not None and other.variant == variant else self.wanted

    def _aim(self, slo_ns: int) -> None:
        super(StageThread, self)._aim(slo_ns)
        self.unaimed = self.at_once
        self._obey()

    def _obey(self) -> None:
        self.at_once = min(self.unaimed, self.aim.size)
        self.window = min(self.aim.window, self.cost.size_max)

    def _choose(self) -> None:
        """Bind the variant whose turn it is, where it can run."""
        variant = self._turn()
        if not self._runs(variant):
            variant = next((each for each, _ in self.choices if self._runs(each)), variant)
        self._bind(variant)

    def _turn(self) -> int:
        wanted = self.wanted
        if wanted.other is not None and self.owed > 0.0:
            return wanted.other.variant
        return wanted.variant if wanted.variant >= 0 else self.variant

    def _runs(self, variant: int) -> bool:
        return self.slot is None or self.slot.runs(variant)

    def _bind(self, variant: int) -> None:
        if variant == self.variant:
            return
        self.variant = variant
        self._plan_for(self.kind)
        if self.kinds is not None:
            self.kinds.run(variant)
        self.aim = self._aim_of(variant)
        self._obey()

    # The candidate

    def _rebuild(self, now_ns: int) -> None:
        self._choose()
        super()._rebuild(now_ns)

    def _form(
        self, kinds: KindCandidates, candidate: KindCandidate, start_at_ns: int, offered: int
    ) -> int:
        self._choose()
        return super()._form(kinds, candidate, start_at_ns, offered)

    def _prune(self, start_at_ns: int, spare: bool) -> int:
        """As ever, but the first request is given to a quicker variant before it is dropped."""
        queue = self.queue
        if len(queue) > 0:
            left_ns = queue.first().deadline_ns - start_at_ns
            for cheaper in self.cheaper[self.variant]:
                most = min(self.cost.size_max, max(self.window, self.aim.size // 2))
                needed = 1 if spare else min(queue.rows, most)
                if self.plan_ns[needed] <= left_ns:
                    break
                if self._runs(cheaper):
                    self._bind(cheaper)
        return super()._prune(start_at_ns, spare)

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        self.slot = slot
        if not slot.runs(self.variant):
            self._choose()
        batch = super().grant(now_ns, slot)
        self.slot = None
        if batch is not None:
            if self.wanted.other is not None:
                self._count(batch)
            if self.kinds is None and self.variant != self._turn():
                self._rebuild(now_ns)
        return batch

    def _count(self, batch: Batch) -> None:
        """Note a batch of the mix."""
        size, wanted = batch.size, self.wanted
        self.owed += wanted.share * size - (size if batch.variant != wanted.variant else 0)
        most = OWED_BATCHES * wanted.size
        self.owed = min(most, max(-most, self.owed))
