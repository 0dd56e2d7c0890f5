"""Computations that policies ask for, such as tables of decisions; they are done off the loop."""

from collections.abc import Callable
from functools import partial

from fermata.router.core.engine import Engine
from fermata.router.core.events import Compute
from fermata.router.core.source import Source
from fermata.router.live.subprocess_worker import Failed, Then, Work


class Computations:
    """Passes the work on, and its results to the policy that asked for them."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], int],
        submit_work: Callable[[Work, Then], None],
        settle_soon: Callable[[], None],
    ) -> None:
        """`settle_soon` is called after each end: the engine may have effects then."""
        self.engine = engine
        self.clock = clock
        self.submit_work = submit_work
        self.settle_soon = settle_soon
        self.trouble: dict[int, str] = {}
        """By application: error of the last computation, until one succeeds."""

    def begin(self, asked: Compute) -> None:
        source = self.engine.sources[asked.application]
        self.submit_work(asked.work, partial(self._on_end, asked, source))

    def _on_end(self, asked: Compute, source: Source, result: object) -> None:
        if self.engine.sources[asked.application] is not source:
            # Another policy serves meanwhile.
            return
        now_ns = self.clock()
        if isinstance(result, Failed):
            self.trouble[asked.application] = result.reason
            self.engine.on_compute_failed(now_ns, asked.application, asked.work)
        else:
            self.trouble.pop(asked.application, None)
            self.engine.on_computed(now_ns, asked.application, result)
        self.settle_soon()
