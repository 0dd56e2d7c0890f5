"""Deferred scheduling of an application that is a stage of pipelines."""

from fermata.foundation.units import NEVER
from fermata.router.core.queries.aim import BatchAim
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import DeferredOptions

STAGES = DeferredOptions(drop_window=0.0, pass_over=False)
"""Whoever was let into a pipeline is not dropped for the sake of others, once work was spent."""


class StageThread(ModelThread):
    """A model's source whose batches are those that the query table asks for."""

    own = False
    aim = BatchAim(NEVER, NEVER, 1, 0)

    def aim_at(self, aim: BatchAim) -> None:
        if aim != self.aim:
            self.aim = aim
            self._obey()

    def _aim(self, slo_ns: int) -> None:
        super()._aim(slo_ns)
        self._obey()

    def _obey(self) -> None:
        self.at_once = min(self.at_once, self.aim.size)
        self.window = self.aim.window
        if not self.aim.first and self._is_busy():
            # Results come a batch at a time: between two of them there is always a lull.
            self.at_lull = max(self.at_lull, self.aim.size // 2)

    def _is_busy(self) -> bool:
        """Whether small batches take time that others could use."""
        backends = self._able_backends()
        return self.signals.usual_demand >= self.options.auto_load * backends > 0.0

    def _prune(self, start_at_ns: int, spare: bool) -> int:
        size = super()._prune(start_at_ns, spare)
        return size if size <= self.aim.size_max else self._whole(self.aim.size_max)

    def _stand(self, now_ns: int, size: int, end_by_ns: int, full: bool = False) -> None:
        super()._stand(now_ns, size, end_by_ns, full)
        bid = self.standing_bid
        bid.key -= self.aim.ahead_ns
        if size >= self.at_once:
            # Requests that come together are told together: nobody is to be waited for.
            bid.ripe_at_ns = min(bid.ripe_at_ns, now_ns)
