"""One process of a load: sends what is due, when it is due, and enters what comes back."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fermata.clients.access import OPEN, Access
from fermata.clients.load.arrivals import SendTimes
from fermata.clients.load.connection import Calls, RequestLane, Way
from fermata.clients.load.ledger import LoadLedger
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire import parameters as names
from fermata.clients.wire.tensors import RawTensor, add_input
from fermata.foundation.precise_timer import PreciseTimer, precise_timer
from fermata.foundation.process_memory import settle_garbage

ID_FIELD = b"\x1a"
"""Tag of `id` in a ModelInferRequest. Fields may follow one another in any order, so a message is
a part that all requests share, serialized once, and its own id behind it."""
LINGER_S = 0.2
"""After the last answer: whatever came twice has come by then."""
LOOK_NS = 200_000_000
"""Between two looks at whether the load was stopped, where requests are few."""
TAIL_NS = 1_000_000_000
"""How long after its deadline an answer is waited for."""


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of request: its model, input and deadline."""

    model: str
    tensor: RawTensor
    slo_ns: int
    priority: int = 0
    timeout: bool = True
    """Tell the server the SLO."""
    more: tuple[RawTensor, ...] = ()
    """Inputs after the first."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """How one process sends."""

    server: str
    streams: int = 8
    """Connections, each with one ModelStreamInfer; a server takes one message at a time of each."""
    unary: bool = False
    """A ModelInfer for each request in place of streams."""
    access: Access = OPEN
    """Token and TLS, for servers that ask for them."""


def shared_part(target: Target) -> bytes:
    """Everything in a request but its id and client."""
    request = pb.ModelInferRequest(model_name=target.model)
    if target.timeout:
        request.parameters[names.TIMEOUT].int64_param = target.slo_ns // 1000
    if target.priority:
        request.parameters[names.PRIORITY].uint64_param = target.priority
    for tensor in (target.tensor, *target.more):
        add_input(request, tensor)
    return request.SerializeToString()


def own_part(index: int, client: int) -> bytes:
    """Its id, and its client where it has one."""
    digits = str(index).encode()
    own = ID_FIELD + bytes((len(digits),)) + digits
    if client:
        given = {names.CLIENT: pb.InferParameter(int64_param=client)}
        own += pb.ModelInferRequest(parameters=given).SerializeToString()
    return own


class Sender:
    """Sends the arrivals of one process."""

    def __init__(self, options: SenderOptions, targets: list[Target], arrivals: SendTimes) -> None:
        self.options = options
        self.targets = targets
        self.arrivals = arrivals
        self.ledger = LoadLedger.of(arrivals)
        self.parts = [shared_part(target) for target in targets]
        self.open = 0
        longest_ns = max((each.slo_ns for each in targets), default=0)
        self.tail_s = (longest_ns + TAIL_NS) / 1e9
        """How long the last request is waited for."""
        self.settled = asyncio.Event()

    async def connect(self) -> None:
        """Before the load starts: connections take their time."""
        self.lanes = self.make_lanes()
        await asyncio.gather(*(lane.connect() for lane in self.lanes))
        # Pauses of the collector would look like the server's.
        settle_garbage()

    def make_lanes(self) -> Sequence[Way]:
        """Ways to the server, not yet connected."""
        options = self.options
        kind = Calls if options.unary else RequestLane
        return [kind(self, options.server, options.access) for _ in range(max(1, options.streams))]

    async def run(self, start_at_ns: int) -> LoadLedger:
        """The ledger, once everything is answered or has been waited for."""
        self.start_at_ns = start_at_ns
        await self._pace()
        if self.open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.settled.wait(), self.tail_s)
        await asyncio.sleep(LINGER_S)
        for lane in self.lanes:
            await lane.close()
        self.ledger.close()
        return self.ledger

    def stop(self) -> None:
        """Send nothing that is due from now on. The rest is sent and waited for as ever."""
        self.ledger.stopped_ns = self.now_ns()

    def is_over(self, due_ns: int) -> bool:
        """Whether the load was stopped before this time."""
        stopped_ns = self.ledger.stopped_ns
        return stopped_ns is not None and stopped_ns <= due_ns

    def now_ns(self) -> int:
        return time.monotonic_ns() - self.start_at_ns

    def make_timer(self, call: Callable[[], None]) -> PreciseTimer:
        """A timer that calls this at times of `time.monotonic_ns`."""
        return precise_timer(asyncio.get_running_loop(), call)

    async def _pace(self) -> None:
        # The loop's own sleep would end up to 1 ms late, and every latency would show it.
        woken = asyncio.Event()
        timer = self.make_timer(woken.set)
        try:
            await self._send_all(timer, woken)
        finally:
            timer.close()

    async def _send_all(self, timer: PreciseTimer, woken: asyncio.Event) -> None:
        lanes = self.lanes
        at_ns = self.arrivals.at_ns.tolist()
        clients = self.arrivals.client.tolist()
        self.left = len(at_ns)
        for index, due_ns in enumerate(at_ns):
            while (wait_ns := due_ns - self.now_ns()) > 0 and not self.is_over(due_ns):
                woken.clear()
                timer.set(self.start_at_ns + due_ns - max(0, wait_ns - LOOK_NS))
                await woken.wait()
            if self.is_over(due_ns):
                self.left = 0
                return
            # A client's frames share a stream, so that they arrive in order.
            lane = lanes[(clients[index] or index) % len(lanes)]
            self.open += 1
            self.left -= 1
            lane.put(index)
            if index % 16 == 15:
                # In a burst that is overdue, others get a turn too.
                await asyncio.sleep(0)

    def message(self, index: int) -> bytes | None:
        """The request to send now; None when its deadline has passed while it waited here."""
        now_ns = self.now_ns()
        target = int(self.arrivals.target[index])
        if now_ns - int(self.arrivals.at_ns[index]) > self.targets[target].slo_ns:
            self.ledger.skip(index)
            self.done()
            return None
        self.ledger.send(index, now_ns)
        return self.compose(index, target)

    def compose(self, index: int, target: int) -> bytes:
        return self.parts[target] + own_part(index, int(self.arrivals.client[index]))

    def answer(self, request_id: str, outcome: str, message: str, batch: int) -> None:
        index = int(request_id) if request_id.isdecimal() else -1
        if self.ledger.answer(index, self.now_ns(), outcome, message):
            self.ledger.batch[index] = batch
            self.done()

    def done(self) -> None:
        self.open -= 1
        if not self.open and not self.left:
            self.settled.set()
