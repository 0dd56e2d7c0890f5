"""Graphs of networks with named tensors, on a stand-in for CUDA that runs them on the CPU."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from fermata.deployments.backend.execution.cuda import device_queue, graphs
from fermata.deployments.backend.execution.cuda.captured import PLAIN, CapturedGraph, CaptureError
from fermata.deployments.backend.execution.cuda.graphs import GraphRunner
from fermata.deployments.backend.execution.cuda.named_graphs import (
    NamedGraphRunner,
    can_be_captured,
)
from fermata.deployments.backend.execution.pace import Pace
from fermata.deployments.backend.models import model_store
from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.backend.models.swapping import SwappingRunner, SwapSpace
from fermata.deployments.models.model import Card, TorchModel
from fermata.deployments.models.named_network import NamedNetwork, Tensors
from fermata.deployments.specs.backend import ModelSpec, StoreOptions
from fermata.deployments.specs.served_model import TensorSpec

INPUTS = (TensorSpec("left", "FP32", (3,)), TensorSpec("right", "INT64", (2,)))


class Moment:
    """A stream or an event: all has happened already."""

    def __init__(self, **_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record(self) -> None:
        pass

    def wait_event(self, _: Any) -> None:
        pass

    def elapsed_time(self, _: Any) -> float:
        return 0.5


@contextmanager
def on_stream(_: Any) -> Iterator[None]:
    yield


class Played:
    """torch, with a CUDA of its own and no pinned memory."""

    cuda = SimpleNamespace(
        Stream=Moment,
        Event=Moment,
        stream=on_stream,
        current_stream=Moment,
        graph_pool_handle=object,
        empty_cache=lambda: None,
        current_device=lambda: 0,
        CUDAGraph=object,
        graph=lambda *_, **__: nullcontext(),
    )

    _C = SimpleNamespace()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def zeros(*given: Any, pin_memory: bool = False, **more: Any) -> Any:
        return torch.zeros(*given, **more)

    @staticmethod
    def empty(*given: Any, pin_memory: bool = False, **more: Any) -> Any:
        return torch.empty(*given, **more)


class Replays(NamedGraphRunner):
    """Captures by recording, and replays into the outputs of the first run."""

    def capture(self, size: int, pool: Any, way: str = PLAIN, stream: Any = None) -> CapturedGraph:
        with torch.inference_mode():
            given = [each[:size] for each in self.inputs]
            recorded = self._recording(size)
            outputs = recorded(*given)

        def replay() -> None:
            for buffer, output in zip(outputs, recorded(*given), strict=True):
                buffer.copy_(output)

        return CapturedGraph(SimpleNamespace(replay=replay), outputs, way)


class Two(torch.nn.Module):
    """Two outputs of two inputs; its shapes are computed as tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 10.0, 100.0]))

    def forward(self, left: Any, right: Any) -> Any:
        rows = torch.tensor(left.shape)[0]
        return (left * self.weight).sum(1), right.reshape(int(rows), -1) + 1


def network(forward: Any = None, inputs: tuple[TensorSpec, ...] = INPUTS) -> NamedNetwork:
    module = Two()

    def named(given: Tensors) -> Any:
        return (forward or module)(*given.values())

    names = ("total", "next") if forward is None else ()
    return NamedNetwork(Card("two", (3,), "float32", (-1,)), module, inputs, named, names)


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "import_module", lambda _: Played())
    monkeypatch.setattr(device_queue, "QUEUES", {})


def item(number: int) -> dict[str, Any]:
    return {"right": np.array([number, -number]), "left": np.full(3, number, np.float32)}


def test_batches_of_any_size_get_their_own_answers_by_name() -> None:
    runner = Replays(network(), 6, INPUTS)
    assert runner.sizes == [1, 2, 3, 4, 5, 6]
    for size in (6, 1, 4, 5, 2):
        items = [item(number) for number in range(size)]
        for each in items:
            runner.check(each)
        answers = runner.run(runner.stage(items))
        assert answers["total"].tolist() == [111.0 * number for number in range(size)]
        assert answers["next"].tolist() == [[n + 1, 1 - n] for n in range(size)]
    runner.close()


def test_batches_in_flight_do_not_disturb_each_other() -> None:
    runner = Replays(network(), 2, INPUTS)
    flights = [runner.launch(runner.stage([item(number)])) for number in range(5)]
    assert [float(each.outputs()["total"][0]) for each in flights] == [0, 111, 222, 333, 444]


def test_answers_do_not_wait_while_another_model_launches() -> None:
    one, other = Replays(network(), 2, INPUTS), Replays(network(), 2, INPUTS)
    flight = one.launch(one.stage([item(1)]))
    found: list[Any] = []
    taker = threading.Thread(target=lambda: found.append(flight.outputs()), daemon=True)
    with other.launching:
        taker.start()
        taker.join(10)
        assert [each["total"].tolist() for each in found] == [[111.0]]


def test_a_batch_of_any_model_keeps_the_device_busy() -> None:
    one, other = Replays(network(), 2, INPUTS), Replays(network(), 2, INPUTS)
    flight = one.launch(one.stage([item(1)]))
    assert (one.flying, other.flying) == (1, 1)
    flight.outputs()
    assert (one.flying, other.flying) == (0, 0)


def test_graphs_keep_the_constants_that_they_read() -> None:
    def forward(left: Any, right: Any) -> Any:
        # Computed from shapes alone, so that recording is all that holds it.
        return left * torch.arange(left.shape[1]), right

    runner = NamedGraphRunner(network(forward), 2, INPUTS)
    runner.recorded = True
    held = runner.capture(2, None).network.state_dict().values()
    assert [0, 1, 2] in [each.tolist() for each in held]


def test_graphs_keep_the_stream_whose_workspace_they_use() -> None:
    runner = NamedGraphRunner(network(), 2, INPUTS)
    side = runner.open_stream()
    assert runner.capture(2, None, stream=side).stream is side


def test_one_input_is_taken_without_its_name() -> None:
    inputs = INPUTS[:1]
    runner = Replays(network(lambda left: (left, -left), inputs), 4, inputs)
    answers = runner.run(runner.stage([np.arange(3, dtype=np.float32)] * 3))
    assert answers["output_0"].tolist() == [[0.0, 1.0, 2.0]] * 3
    assert answers["output_1"].tolist() == [[0.0, -1.0, -2.0]] * 3


def looks(left: Any, right: Any) -> Any:
    return left if bool(right.sum()) else -left


def looks_unseen(left: Any, right: Any) -> Any:
    return left * left.tolist()[0][0]


def without_rows(left: Any, right: Any) -> Any:
    return left, right.sum()


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (looks, "looks at its values"),
        (looks_unseen, "something else for other values"),
        (without_rows, "no row for each"),
        (lambda left, right: left @ left.T, "differ in shape"),
    ],
)
def test_networks_that_no_graph_can_hold_say_so(forward: Any, reason: str) -> None:
    with pytest.raises(CaptureError, match=reason):
        Replays(network(forward), 4, INPUTS)


@pytest.mark.parametrize(
    ("inputs", "can"),
    [
        (INPUTS, True),
        ((), False),
        ((TensorSpec("text", "BYTES", (1,)),), False),
        ((TensorSpec("ids", "INT64", (-1,)),), False),
        ((TensorSpec("ids", "INT64", (8,), optional=True),), False),
    ],
)
def test_only_fixed_inputs_can_be_captured(inputs: tuple[TensorSpec, ...], can: bool) -> None:
    assert can_be_captured(inputs) is can


@contextmanager
def refuse(*_: Any, **__: Any) -> Iterator[None]:
    raise RuntimeError("operation not permitted when stream is capturing")
    yield


class Looks(torch.nn.Module):
    """Looks at its values, which no graph can hold."""

    def forward(self, batch: Any) -> Any:
        return batch if bool(batch.sum() > 0) else -batch


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> GraphRunner:
    """A runner without graphs, loaded in haste."""
    monkeypatch.setattr(Played.cuda, "graph", refuse)
    pace = Pace()
    pace.hurries = True
    return GraphRunner(TorchModel(Card("looks", (3,), "float32", (3,)), Looks()), 8, pace=pace)


def test_a_runner_without_graphs_has_none_to_capture_later(eager: GraphRunner) -> None:
    assert eager.eager
    eager.capture_finer()
    assert eager.sizes == [1, 2, 4, 8]
    assert eager.run(eager.stage([np.full(3, -2, np.float32)])).tolist() == [[2.0, 2.0, 2.0]]


def test_only_runners_with_sizes_left_are_finished_later(
    eager: GraphRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = Pace()
    hasty.hurries = True
    left = Replays(network(), 6, INPUTS, hasty)
    assert left.finer == [5]
    store = ModelStore(StoreOptions((ModelSpec("eager", "", 8), ModelSpec("left", "", 6))))
    store.use_device()
    for name, runner in (("eager", eager), ("left", left)):
        monkeypatch.setattr(model_store, "load_runner", lambda *_, runner=runner, **__: runner)
        store.load(name)
    assert store.hurried == [left]


def test_beside_a_process_that_serves_few_sizes_are_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = Pace(lambda: True, lambda _: None)
    spare = Replays(network(), 6, INPUTS, beside)
    assert (spare.sizes, spare.finer) == ([1, 2, 3, 4, 6], [5])
    store = ModelStore(StoreOptions((ModelSpec("model", "", 6),)))
    store.pace = beside
    put_off: list[bool] = []
    monkeypatch.setattr(
        store, "tuning", SimpleNamespace(add=lambda *_, later: put_off.append(later))
    )
    monkeypatch.setattr(model_store, "load_runner", lambda *_, **__: spare)
    store.load("model")
    assert (store.hurried, put_off) == ([spare], [True])


def test_inputs_are_checked_while_another_model_is_swapped_in() -> None:
    space = SwapSpace(lambda spec: Replays(network(), spec.batch_size_max, INPUTS))
    first, second = (SwappingRunner(ModelSpec(name, "", 2), space) for name in ("a", "b"))
    for runner in (first, second, first):
        runner.check(item(1))
        assert runner.alike(item(1)) == runner.alike(item(2))
        assert runner.run(runner.stage([item(1)]))["total"].tolist() == [111.0]


def test_an_input_may_be_one_number_in_each_row() -> None:
    inputs = (TensorSpec("left", "FP32", (3,)), TensorSpec("length", "INT64", ()))
    runner = Replays(network(lambda left, length: left[:, 0] * length, inputs), 2, inputs)
    # Rows of a larger request are numbers, not arrays.
    lengths = np.array([5, 7])
    rows = [{"left": np.full(3, 2, np.float32), "length": each} for each in lengths]
    assert runner.run(runner.stage(rows))["output"].tolist() == [10.0, 14.0]


def test_networks_that_cannot_be_recorded_are_captured_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = network(lambda left, right: left + torch.rand(3))
    given.computes_shapes = True
    runner = NamedGraphRunner(given, 4, INPUTS)
    assert sorted(runner.graphs) == [1, 2, 3, 4]
    assert not runner.recorded
    monkeypatch.setattr(Played.cuda, "graph", refuse)
    with pytest.raises(CaptureError, match="draws random numbers"):
        NamedGraphRunner(given, 4, INPUTS)


class Similarity(torch.nn.Module):
    """Compares the requests of a batch with each other."""

    def forward(self, batch: Any) -> Any:
        return batch @ batch.T


def test_a_network_without_buffers_that_fit_all_sizes_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"\[\[3\]\] and \[\[4\]\]; .*batch_size_max: 1$"):
        GraphRunner(TorchModel(Card("pairs", (3,), "float32", (-1,)), Similarity()), 4)


def test_sizes_captured_later_fit_the_buffers_too() -> None:
    hasty = Pace()
    hasty.hurries = True
    forward = network(lambda left, right: left[:, :2] if len(left) == 5 else left)
    runner = Replays(forward, 6, INPUTS, hasty)
    with pytest.raises(CaptureError, match="differ in shape"):
        runner.capture_finer()
    assert runner.sizes == [1, 2, 3, 4, 6]


class Grouped(torch.nn.Module):
    """A convolution, and a factor of five axes behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3)
        self.factor = torch.nn.Parameter(torch.ones(1, 2, 2, 1, 1))
        self.register_buffer("mask", torch.ones(1, 4, 6, 6))

    def forward(self, batch: Any) -> Any:
        found = self.convolution(batch) * self.mask
        return (found.reshape(-1, 2, 2, 6, 6) * self.factor).sum((1, 2, 3, 4))


def test_only_pictures_have_their_channels_last() -> None:
    module = Grouped()
    GraphRunner(TorchModel(Card("grouped", (3, 8, 8), "float32", ()), module), 2)
    for each in (module.convolution.weight, module.mask):
        assert each.is_contiguous(memory_format=torch.channels_last)
    assert module.factor.is_contiguous()


def test_captures_in_two_threads_do_not_mix_what_they_set_for_the_process() -> None:
    first, second = (NamedGraphRunner(network(), 2, INPUTS) for _ in range(2))
    beside = threading.Thread(target=second.capture, args=(1, None))
    heard = []

    @contextmanager
    def hear(name: str) -> Iterator[None]:
        heard.append(name)
        if beside.ident is None:
            beside.start()
            beside.join(0.1)
        yield
        heard.append(name)

    first.model.around = lambda: hear("first")
    second.model.around = lambda: hear("second")
    first.capture(1, None)
    beside.join()
    assert heard == sorted(heard)
