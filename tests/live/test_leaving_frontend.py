"""A frontend that shuts down, as each does in an upgrade: what its streams still send is served."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

pytest.importorskip("uvicorn")

from stand_in import Running, ask, numbers, options, wait_for

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.deployments.specs.frontend import ServerOptions, StreamLimits
from fermata.foundation.units import ms, seconds

pytestmark = pytest.mark.live

DRAIN_S = 2.0
SERVER = ServerOptions(grpc_port=0, http_port=-1, drain_ns=seconds(DRAIN_S))
DELAY_S = 0.2
SUM = [6.0, 0.0, 3.0]


class Client:
    """One stream, whose requests are sent when a test says so."""

    def __init__(self, system: Running, stub: Any) -> None:
        self.entries = system.frontend.hub.table.entries
        self.requests: queue.Queue[pb.ModelInferRequest | None] = queue.Queue()
        self.call = stub.ModelStreamInfer(iter(self.requests.get, None))
        self.answers: list[list[float]] = []

    def send(self) -> None:
        self.requests.put(ask("sum"))

    def keep_busy(self) -> None:
        """Send four, apart from one another, so that one is always open if each is followed by the
        next."""
        for _ in range(4):
            self.send()
            time.sleep(DELAY_S / 4)

    def read(self, then_send: bool = False) -> grpc.RpcError:
        """Read answers until the stream breaks, and maybe send one more for each."""
        with pytest.raises(grpc.RpcError) as caught:
            self._read(then_send)
        return caught.value

    def _read(self, then_send: bool) -> None:
        for each in self.call:
            self.answers.append(numbers(each.infer_response))
            if then_send:
                self.send()


@contextmanager
def streaming(system: Running) -> Iterator[Client]:
    with grpc.insecure_channel(system.target) as channel:
        client = Client(system, InferenceStub(channel))
        yield client
        client.requests.put(None)


@contextmanager
def leaving(system: Running) -> Iterator[None]:
    """The frontend shuts down meanwhile."""
    ends = threading.Thread(target=system.close)
    ends.start()
    wait_for(lambda: system.frontend.hub.readiness.leaving)
    yield
    ends.join()


def test_a_request_that_comes_before_the_client_could_have_left_is_served() -> None:
    system = Running(lambda: options(server=SERVER))
    with streaming(system) as client:
        wait_for(lambda: len(system.frontend.service.streams) == 1)
        with leaving(system):
            client.send()
            client.read()
    assert client.answers == [SUM]


def test_a_request_that_comes_while_another_is_open_is_served() -> None:
    system = Running(lambda: options(server=SERVER), delay_s=DELAY_S)
    with streaming(system) as client:
        client.send()
        wait_for(lambda: len(client.entries) == 1)
        with leaving(system):
            client.send()
            broken = client.read()
    assert client.answers == [SUM, SUM]
    assert broken.code() == grpc.StatusCode.UNAVAILABLE
    assert "this frontend shuts down: reconnect" in broken.details()


def test_a_stream_that_is_never_done_ends_while_there_is_time_for_its_answers() -> None:
    system = Running(lambda: options(server=SERVER), delay_s=DELAY_S)
    with streaming(system) as client:
        client.keep_busy()
        began_s = time.monotonic()
        with leaving(system):
            broken = client.read(then_send=True)
            took_s = time.monotonic() - began_s
    assert "this frontend shuts down: reconnect" in broken.details()
    # It was served for half of the time, four requests at once.
    assert len(client.answers) > 12
    assert all(each == SUM for each in client.answers)
    assert took_s < DRAIN_S


def test_an_old_stream_that_is_never_done_ends_too() -> None:
    limits = StreamLimits(age_ns_max=ms(300), leave_ns=seconds(1))
    system = Running(lambda: options(streams=limits), delay_s=DELAY_S)
    with streaming(system) as client:
        client.keep_busy()
        broken = client.read(then_send=True)
    assert "0.3 s old: reconnect" in broken.details()
    assert len(client.answers) > 12
    system.close()
