"""A `GraphRunner` on a device that is played: graphs are calls, run times are those of a table."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fermata.deployments.backend.execution.cuda.captured import PLAIN, CapturedGraph
from fermata.deployments.models.model import Card, TorchModel


def make_network() -> Any:
    torch.manual_seed(0)
    return nn.Linear(4, 3).eval().requires_grad_(False)


class Played:
    """A `GraphRunner` without a GPU."""

    def __init__(self, network: Any, times_ns: Mapping[str, Mapping[int, int]]) -> None:
        self.torch = torch
        self.times_ns = times_ns
        """Run times by way and batch size."""
        self.model = TorchModel(Card("played", (4,), "float32", (3,)), network)
        self.sizes = [1, 2, 3, 4, 6, 8]
        self.room = 8
        self.flying = 0
        self.closed = False
        self.recorded = False
        self.served: dict[int, int] = {}
        self.captured: list[tuple[int, str]] = []
        self.installed: list[dict[int, CapturedGraph]] = []
        self.graphs = {size: self.capture(size, None) for size in self.sizes}

    def open_stream(self) -> str:
        return "side"

    def open_pool(self) -> object:
        return object()

    @contextmanager
    def on_stream(self, stream: str) -> Iterator[None]:
        assert stream == "side"
        with torch.inference_mode():
            yield

    def sample(self, size: int) -> Any:
        return [torch.from_numpy(self.model.card.make_batch(size))]

    def compute(self, batch: Any) -> Any:
        return (self.model.forward(batch),)

    def capture(self, size: int, pool: Any, way: str = PLAIN, stream: Any = None) -> CapturedGraph:
        self.captured.append((size, way))
        return CapturedGraph(size, self.compute(torch.ones(size, 4)), way)

    def time_ns(self, captured: CapturedGraph) -> int:
        return self.times_ns[captured.way][captured.graph]

    def install(self, found: dict[int, CapturedGraph]) -> None:
        self.installed.append(found)
        self.graphs.update(found)
