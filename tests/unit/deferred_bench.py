"""One model, deferred, on backends that run as profiled."""

from fermata.foundation.units import NEVER, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, Request
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import DeferredOptions

SIZE_MAX = 32


class Bench:
    """One model, its backends and a clock; run times are exactly as planned."""

    def __init__(
        self,
        options: DeferredOptions | None = None,
        backends: int = 1,
        lead_ns: int = 0,
        slo_ns_max: int = NEVER,
        ranks: int = 1,
    ) -> None:
        costs = Costs()
        costs.add(0, [ms(4 + size) for size in range(1, SIZE_MAX + 1)])
        self.engine = Engine(costs, ranks)
        self.source = ModelThread(0, options or DeferredOptions(), slo_ns_max=slo_ns_max)
        self.engine.add_application(self.source)
        self.engine.ranks[0].lead_start_ns = lead_ns
        for backend in range(backends):
            self.engine.on_backend_up(0, backend)
        self.rid = 0
        self.ends: list[tuple[int, int, int]] = []
        self.ran: list[tuple[float, list[int]]] = []
        """(when sent in ms, request ids) of each batch."""
        self.dropped: list[tuple[int, int, str]] = []
        """(when in ns, request id, reason)."""

    def send(self, at_ns: int, slo_ns: int, start_by_ns: int = NEVER, rows: int = 1) -> int:
        """Go on to that time and hand a request in."""
        self.advance(at_ns - 1)
        self._end_batches(at_ns)
        request = Request(self.rid, 0, at_ns, at_ns + slo_ns)
        request.start_by_ns = start_by_ns
        request.rows = rows
        self.rid += 1
        self.engine.on_request(at_ns, request)
        self.carry_out(at_ns)
        return request.rid

    def advance(self, to_ns: int) -> None:
        """Fire every timer and end every batch due by then, each at its own time."""
        while True:
            end_ns = self.ends[0][0] if self.ends else NEVER
            now_ns = min(end_ns, self.engine.wake_at_ns())
            if now_ns > to_ns:
                return
            if end_ns == now_ns:
                self._end_batches(now_ns)
            else:
                self.engine.on_time(now_ns)
                self.carry_out(now_ns)

    def _end_batches(self, now_ns: int) -> None:
        while self.ends and self.ends[0][0] <= now_ns:
            _, backend, run_ns = self.ends.pop(0)
            self.engine.on_done(now_ns, backend, run_ns)
            self.carry_out(now_ns)

    def carry_out(self, now_ns: int) -> None:
        for effect in self.engine.take_effects():
            if isinstance(effect, Dispatch):
                batch = effect.batch
                run_ns = ms(4 + len(batch.requests))
                self.ends.append((batch.start_at_ns + run_ns, effect.backend, run_ns))
                self.ends.sort()
                self.ran.append((now_ns / 1e6, [request.rid for request in batch.requests]))
            elif isinstance(effect, Drop):
                self.dropped.append((now_ns, effect.request.rid, effect.reason))

    def warm_up(self, gap_ns: int, slo_ns: int) -> int:
        """Arrivals at that distance for one bucket of the rate meter; returns when all is quiet."""
        for index in range(ms(100) // gap_ns + 1):
            self.send(index * gap_ns, slo_ns)
        self.advance(ms(190))
        self.ran.clear()
        self.dropped.clear()
        return ms(190)
