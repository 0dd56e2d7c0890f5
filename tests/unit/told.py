"""An engine whose sources bid as they are told; a batch of b runs b + 4 ms."""

from fermata.foundation.units import NEVER, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Batch, Dispatch, Drop, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import NO_LANES, POOL_ONLY, Bid, Source


class Told(Source):
    """Bids for its whole queue with the key it was given; hands back what it was told to."""

    def __init__(self, variant: int = 0, key: int = 0) -> None:
        self.variant = variant
        self.key = key
        self.ripe_at_ns = 0
        self.expires_at_ns = NEVER // 2
        self.size_max = 16
        self.queue: list[Request] = []
        self.declines: set[int] = set()
        self.offers: list[tuple[int, int]] = []
        """(backend, start) of every slot it was offered."""
        self.evidence: list[tuple[float, ...] | None] = []

    def on_request(self, now_ns: int, request: Request) -> tuple[int, ...]:
        self.queue.append(request)
        return POOL_ONLY

    def on_cancel(self, now_ns: int, request: Request) -> tuple[int, ...]:
        self.queue.remove(request)
        return POOL_ONLY

    def on_update(self, now_ns: int, request: Request) -> tuple[int, ...]:
        self.evidence.append(request.accuracies)
        return NO_LANES

    def bid(self, now_ns: int, lane: int) -> Bid | None:
        if not self.queue:
            return None
        bid = Bid()
        bid.size = min(len(self.queue), self.size_max)
        bid.key = self.key
        bid.ripe_at_ns = self.ripe_at_ns
        bid.expires_at_ns = self.expires_at_ns
        return bid

    def grant(self, now_ns: int, slot: Slot) -> Batch | None:
        self.offers.append((slot.backend, slot.start_at_ns))
        if slot.backend in self.declines:
            return None
        taken, self.queue = self.queue[: self.size_max], self.queue[self.size_max :]
        return Batch(self.variant, taken)


def make(*sources: Told, backends: int = 1, lead_ns: int = 0) -> Engine:
    costs = Costs()
    engine = Engine(costs)
    for variant in range(len(sources)):
        costs.add(variant, [ms(4 + size) for size in range(1, 17)], swap_in_ns=ms(20))
    for source in sources:
        engine.add_application(source)
    engine.ranks[0].lead_start_ns = lead_ns
    for backend in range(backends):
        engine.on_backend_up(0, backend)
    return engine


def send(engine: Engine, rid: int, at_ns: int = 0, application: int = 0) -> None:
    engine.on_request(at_ns, Request(rid, application, at_ns, at_ns + ms(100)))


def advance(engine: Engine, to_ns: int) -> None:
    """Fire every timer due by then, each at its own time."""
    while engine.wake_at_ns() <= to_ns:
        engine.on_time(engine.wake_at_ns())


def ran(engine: Engine) -> list[tuple[int, int, list[int]]]:
    """(backend, planned start in ms, request ids) of what was dispatched since the last call."""
    return [
        (
            effect.backend,
            effect.batch.start_at_ns // ms(1),
            [request.rid for request in effect.batch.requests],
        )
        for effect in engine.take_effects()
        if isinstance(effect, Dispatch)
    ]


def dropped(engine: Engine) -> list[tuple[int, str]]:
    return [
        (effect.request.rid, effect.reason)
        for effect in engine.take_effects()
        if isinstance(effect, Drop)
    ]
