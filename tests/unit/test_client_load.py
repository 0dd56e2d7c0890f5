"""Arrivals, the ledger and its figures, with numbers worked by hand."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from fermata.clients.load.arrivals import SendTimes, cameras, gamma, poisson, single, trace
from fermata.clients.load.ledger import LoadLedger, merge
from fermata.clients.load.report import report
from fermata.clients.load.sender import Sender, SenderOptions, Target, own_part, shared_part
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import from_array

SECOND = 1_000_000_000
MS = 1_000_000


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_rates_are_kept_and_seeds_repeat() -> None:
    times = poisson(1000, 10 * SECOND, rng())
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert np.array_equal(times, poisson(1000, 10 * SECOND, rng()))
    assert np.all(np.diff(times) >= 0)
    gaps = np.diff(gamma(1000, 10 * SECOND, 4.0, rng()))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(0.5, rel=0.05)


def test_a_trace_changes_its_rate_step_by_step() -> None:
    times = trace([100, 900], SECOND, 4 * SECOND, rng())
    assert len(times[times < SECOND]) == pytest.approx(100, abs=40)
    assert len(times[times >= 3 * SECOND]) == pytest.approx(900, abs=120)


def test_cameras_are_periodic_and_keep_their_client() -> None:
    at_ns, client = cameras(2, 10, SECOND, "staggered", rng())
    assert at_ns[client == 1].tolist() == [index * 100 * MS for index in range(10)]
    assert at_ns[client == 2].tolist() == [50 * MS + index * 100 * MS for index in range(10)]
    with pytest.raises(BadRequestError, match="locked, staggered, random"):
        cameras(2, 10, SECOND, "odd", rng())


def test_parts_share_the_load_and_split_no_client() -> None:
    at_ns, client = cameras(5, 10, SECOND, "random", rng())
    whole = single(at_ns, client)
    parts = [whole.part(index, 2) for index in range(2)]
    assert sum(len(part) for part in parts) == len(whole)
    assert not set(parts[0].client.tolist()) & set(parts[1].client.tolist())
    alone = single(poisson(100, SECOND, rng()))
    assert abs(len(alone.part(0, 2)) - len(alone.part(1, 2))) <= 1


def ledger(count: int) -> LoadLedger:
    at_ns = np.arange(count, dtype=np.int64) * 100 * MS
    zeros = np.zeros(count, np.int64)
    return LoadLedger.of(SendTimes(at_ns, zeros, zeros))


def test_every_request_counts_once_and_latency_is_from_its_schedule() -> None:
    book = ledger(6)
    for index in range(5):
        # Each left 10 ms late; that is part of its latency.
        book.send(index, index * 100 * MS + 10 * MS)
    assert book.answer(0, 40 * MS, "OK")
    assert book.answer(1, 100 * MS + 60 * MS, "OK")
    assert book.answer(2, 210 * MS, "RESOURCE_EXHAUSTED", "shed")
    assert book.answer(3, 330 * MS, "OK")
    book.batch[[0, 1, 3]] = [2, 2, 1]
    assert not book.answer(0, 50 * MS, "OK")
    assert not book.answer(99, 50 * MS, "OK")
    book.skip(5)
    book.close()
    result = report(book, np.array([50 * MS]), 0, 600 * MS)
    assert (result.requests, result.good, result.late) == (6, 2, 1)
    assert (result.unsent, result.lost) == (1, 1)
    assert result.refused == {"RESOURCE_EXHAUSTED": 1}
    assert (result.duplicates, result.strangers) == (1, 1)
    assert result.bad_rate == pytest.approx(4 / 6)
    assert result.goodput_rps == pytest.approx(2 / 0.6)
    assert result.latency_ms["p50"] == 40
    assert result.latency_ms["max"] == 60
    assert result.pacing_ms_p99 == 10
    # Two requests of one batch of 2, and a batch of 1: three requests in two batches.
    assert result.mean_batch == pytest.approx(1.5)
    assert result.messages == {"RESOURCE_EXHAUSTED": "shed"}


def test_the_warm_up_does_not_count() -> None:
    book = ledger(4)
    for index in range(4):
        book.send(index, index * 100 * MS)
    book.answer(3, 301 * MS, "OK")
    book.close()
    assert report(book, np.array([50 * MS]), 300 * MS, 400 * MS).bad_rate == 0


def test_a_request_is_never_sent_twice() -> None:
    book = ledger(1)
    book.send(0, 0)
    with pytest.raises(AssertionError, match="sent twice"):
        book.send(0, 1)


def test_ledgers_of_several_processes_become_one() -> None:
    one, other = ledger(2), ledger(1)
    for index in range(2):
        one.send(index, 0)
    other.send(0, 0)
    one.answer(0, 1, "UNAVAILABLE", "gone")
    one.answer(1, 1, "OK")
    other.answer(0, 1, "RESOURCE_EXHAUSTED", "shed")
    book = merge([one, other])
    names = [book.outcomes[code] for code in book.outcome]
    assert names == ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "OK"]
    assert book.messages == {"UNAVAILABLE": "gone", "RESOURCE_EXHAUSTED": "shed"}


def test_a_message_is_a_shared_part_and_its_own() -> None:
    tensor = from_array("input", np.zeros(4, np.uint8))
    target = Target("resnet", tensor, 50 * MS, priority=1)
    message = pb.ModelInferRequest.FromString(shared_part(target) + own_part(12345, 9))
    assert message.id == "12345"
    assert message.parameters["timeout"].int64_param == 50_000
    assert message.parameters["priority"].uint64_param == 1
    assert message.parameters["client"].int64_param == 9
    assert message.raw_input_contents[0] == bytes(4)
    assert not pb.ModelInferRequest.FromString(own_part(1, 0)).parameters


class PacedSender(Sender):
    """A sender on a clock that its timer alone moves; one lane sends what is put at once."""

    def __init__(self, at_ns: list[int]) -> None:
        zeros = np.zeros(len(at_ns), np.int64)
        target = Target("m", from_array("x", np.zeros(1, np.float32)), SECOND)
        arrivals = SendTimes(np.array(at_ns, np.int64), zeros, zeros)
        super().__init__(SenderOptions(""), [target], arrivals)
        self.timer = SetClock()
        self.lanes = [PromptLane(self)]

    def now_ns(self) -> int:
        return self.timer.now_ns - self.start_at_ns

    def make_timer(self, call: Callable[[], None]) -> "SetClock":
        self.timer.call = call
        return self.timer


class SetClock:
    """A timer that takes its clock to the time that it is set to."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.call: Callable[[], None] = lambda: None

    def set(self, at_ns: int) -> None:
        assert at_ns > self.now_ns
        self.now_ns = at_ns
        asyncio.get_running_loop().call_soon(self.call)

    def close(self) -> None:
        pass


class PromptLane:
    """A server that answers before anything else happens."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender

    async def connect(self) -> None: ...

    def put(self, index: int) -> None:
        assert self.sender.message(index) is not None
        self.sender.answer(str(index), "OK", "", 1)

    async def close(self) -> None: ...


def test_requests_leave_at_the_very_nanosecond() -> None:
    due = [0, 1, 700_001, 700_001, 1_300_007, 2 * SECOND + 3]
    sender = PacedSender(due)
    found = asyncio.run(sender.run(start_at_ns=5 * SECOND))
    assert found.sent_ns.tolist() == due
