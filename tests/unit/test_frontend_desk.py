"""The request driver: one request's trouble stays its own."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.tensors import RawTensor, add_input, from_array
from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.frontend.outcomes import Outcome, Refusal
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.frontend.requests.request_driver import DriverLimits, RequestDriver
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.units import ms, seconds
from fermata.router.links.messages import (
    Cancel,
    ClientNetworkReport,
    Evidence,
    InputSizeAdvice,
    Payload,
    Result,
    Submit,
)

BYTES = ServedModel("bytes", TensorSpec("input", "UINT8", (4,)), seconds(1), seconds(1))
SIZED = ServedModel(
    "sized", TensorSpec("input", "UINT8", (8, 8, 3)), seconds(1), seconds(1), sides={"small": 8}
)


PAIRS = ServedModel("pairs", TensorSpec("input", "FP32", (2,)), seconds(1), seconds(1), rows_max=2)


class Watch:
    """Shows what it is set to."""

    now_ns = seconds(5)

    def __call__(self) -> int:
        return self.now_ns


class Nowhere:
    """A sender whose messages reach nobody."""

    def to_router(
        self,
        message: Submit | Cancel | Evidence | ClientNetworkReport,
        home: int | None = None,
    ) -> None:
        pass

    def to_backend(self, backend: int, payload: Payload) -> None:
        pass


class Recorder(Nowhere):
    """Keeps what the router is told."""

    def __init__(self) -> None:
        self.submitted: list[Submit] = []

    def to_router(
        self,
        message: Submit | Cancel | Evidence | ClientNetworkReport,
        home: int | None = None,
    ) -> None:
        if isinstance(message, Submit):
            self.submitted.append(message)


@contextmanager
def a_driver() -> Iterator[RequestDriver]:
    with ThreadPoolExecutor(1) as pool:
        arena = Arena(0)
        yield RequestDriver(RequestTable(1), arena, pool, Nowhere())
        arena.close()


def asking(model: ServedModel, frame: tuple[int, int] = (0, 0)) -> ParsedRequest:
    encoded = frame != (0, 0)
    tensor = RawTensor("input", "BYTES" if encoded else "UINT8", (1,) if encoded else (4,), b"abcd")
    terms = RequestTerms(model.name, model.slo_ns, model.hard_limit_ns, 4)
    return ParsedRequest("1", "", terms, RequestInput(model, tensor, encoded, False, frame))


async def _answers_to_two(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Outcome]]:
    said: list[tuple[str, Outcome]] = []

    def speechless(rid: int, outcome: Outcome) -> None:
        if not isinstance(outcome, Refusal):
            raise TypeError("no words for it")
        said.append(("speechless", outcome))

    with a_driver() as driver:
        driver.table.on_router_up(0, 1)
        first = driver.open(asking(BYTES), speechless)
        second = driver.open(asking(BYTES), lambda _, outcome: said.append(("other", outcome)))
        assert isinstance(first, int)
        assert isinstance(second, int)
        for rid in (first, second):
            driver.on_result(1, Result(rid, "v1", 2, 0, 1000))
        driver.pump()
        driver.close()
    assert "cannot encode response" in caplog.text
    return said


def test_an_answer_without_words_costs_nobody_else_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (first, refused), (second, served) = asyncio.run(_answers_to_two(caplog))
    assert (first, second) == ("speechless", "other")
    assert isinstance(refused, Refusal)
    assert refused.status == "INTERNAL"
    assert "no words for it" in refused.message
    assert isinstance(served, Result)


def rows(*values: float) -> ParsedRequest:
    request = pb.ModelInferRequest(model_name="pairs")
    add_input(request, from_array("input", np.array([[each, each] for each in values], np.float32)))
    return parse_request(request, Registry.of([PAIRS]))


async def _open_rows(*values: float) -> tuple[int | Refusal, list[Submit], int]:
    told = Recorder()
    with ThreadPoolExecutor(1) as pool, closing(Arena(1 << 20)) as arena:
        # A part is small enough to be handled at once, all of them together are not.
        limits = DriverLimits(inline_bytes_max=16)
        driver = RequestDriver(RequestTable(1), arena, pool, told, limits)
        driver.on_router_up(1)
        found = driver.open(rows(*values), lambda *_: None)
        await asyncio.sleep(0)
        left = len(driver.table.entries)
        driver.close()
    return found, told.submitted, left


def test_a_message_is_not_kept_once_its_data_have_been_copied() -> None:
    async def play() -> None:
        with ThreadPoolExecutor(1) as pool, closing(Arena(1 << 12)) as arena:
            recorder, request = Recorder(), asking(BYTES)
            driver = RequestDriver(RequestTable(1), arena, pool, recorder)
            driver.table.on_router_up(0, 1)
            assert isinstance(driver.open(request, lambda rid, outcome: None), int)
            assert request.input.tensor.data == b""
            payload = recorder.submitted[0].payload
            assert payload is not None
            assert arena.inline(payload).data == b"abcd"
            driver.close()

    asyncio.run(play())


def test_each_part_of_a_split_request_has_a_place_of_its_own() -> None:
    found, submitted, _ = asyncio.run(_open_rows(1, 2, 3, 4, 5))
    assert isinstance(found, int)
    assert [each.rows for each in submitted] == [2, 2, 1]
    places = [each.payload for each in submitted if each.payload is not None]
    assert [(each.rows, each.length) for each in places] == [(2, 16), (2, 16), (0, 8)]
    assert len({each.offset for each in places}) == 3


def test_a_number_that_is_not_finite_is_found_in_any_part() -> None:
    found, _, left = asyncio.run(_open_rows(1, 2, 3, 4, float("nan")))
    assert isinstance(found, Refusal)
    assert found.status == "INVALID_ARGUMENT"
    assert left == 0


async def _open_huge() -> int | Refusal:
    with a_driver() as driver:
        found = driver.open(asking(SIZED, frame=(65_535, 65_535)), lambda *_: None)
        assert not driver.table.entries
        driver.close()
        return found


def test_a_header_is_not_believed_to_the_last_gigabyte() -> None:
    refused = asyncio.run(_open_huge())
    assert isinstance(refused, Refusal)
    assert refused.status == "INVALID_ARGUMENT"
    assert "65535x65535" in refused.message


async def _advised(clients: int) -> tuple[int, list[InputSizeAdvice | None]]:
    def of(client: int) -> RequestTerms:
        return RequestTerms("bytes", seconds(1), seconds(1), 4, client=client)

    with a_driver() as driver:
        for client in range(clients):
            driver.on_advice(InputSizeAdvice("bytes", client, 128, 0, True))
            driver.advice_for(of(0))
        found = [driver.advice_for(of(client)) for client in (0, 1, clients - 1)]
        driver.close()
        return len(driver.advice), found


def test_clients_that_still_send_keep_their_advice() -> None:
    kept, (first, second, last) = asyncio.run(_advised(2 * DriverLimits().advice_max))
    assert kept == DriverLimits().advice_max
    assert (first is None, second is None, last is None) == (False, True, False)


def test_what_lay_unread_while_the_process_was_stopped_is_refused() -> None:
    async def play() -> None:
        watch = Watch()
        with ThreadPoolExecutor(1) as pool:
            driver = RequestDriver(RequestTable(1), Arena(0), pool, Nowhere(), clock=watch)
            driver.table.on_router_up(0, 1)
            driver.stall_detector.start()

            def ask() -> int | Refusal:
                return driver.open(asking(BYTES), lambda *_: None)

            watch.now_ns += ms(600)
            # Half a second: there is time left.
            assert isinstance(ask(), int)
            watch.now_ns += seconds(2)
            for _ in range(2):
                refused = ask()
                assert isinstance(refused, Refusal)
                assert refused.status == "UNAVAILABLE"
                assert refused.message.startswith("stalled: the frontend did not run for 2")
                # Before the loop comes to its clock, and while it still reads what lay there.
                driver.stall_detector._on_tick()
            watch.now_ns += ms(150)
            assert isinstance(ask(), int)
            driver.close()

    asyncio.run(play())
