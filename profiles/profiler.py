"""Measures a loaded model into a profile: run times, memory, load and swap-in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fermata.profiles.h200 import Raised
from fermata.profiles.measure import Columns, Device, MeasureEffort, Row, measure, percentile
from fermata.profiles.profile import Profile
from fermata.profiles.store import NS_PER_MS

SWAPS = 3


class About(Protocol):
    """A model's description of itself; `fermata.deployments.models.model.Card` is one."""

    @property
    def name(self) -> str: ...
    @property
    def input(self) -> str: ...
    @property
    def accuracy(self) -> float | None: ...
    @property
    def recall(self) -> tuple[float, ...]: ...
    @property
    def file_bytes(self) -> int: ...

    def make_batch(self, size: int) -> Any: ...


class LoadedModel(Protocol):
    """A model that runs a batch. It may also have `static_bytes`, `forward`, `finish` and `to`."""

    @property
    def card(self) -> Any: ...

    def __call__(self, batch: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class ProfilerOutcome:
    """A profile and what was done to the measurements to make it one."""

    profile: Profile
    runs: tuple[int, ...]
    """Timed runs behind each batch size; below 100, its p99 is the maximum."""
    raised: tuple[Raised, ...]


def profile_model(
    open_model: Callable[[], LoadedModel],
    batches: Sequence[int],
    device: Device,
    clock: Callable[[], int],
    *,
    effort: MeasureEffort | None = None,
    cuda: bool = False,
    graphs: bool = False,
    on_row: Callable[[Row], None] | None = None,
) -> ProfilerOutcome:
    """The profile of what `open_model` gives; `graphs` replays CUDA graphs instead of launching."""
    # Opened twice: the first time imports libraries, fills the disk cache and may train a model,
    # which no backend does again when it loads.
    first = open_model()
    del first
    device.synchronize()
    held = device.used_bytes()
    started_ns = clock()
    model = open_model()
    device.synchronize()
    load_ns = clock() - started_ns
    static_bytes = _static_bytes(model, device.used_bytes() - held)
    swap_in_ns = _swap_in_ns(model, device, clock) if cuda else 0
    run, make_batch = _ways(model, cuda, graphs)
    columns = measure(run, make_batch, batches, device, clock, effort, on_row)
    about: About = model.card
    profile = Profile(
        about.name,
        batches=columns.batches,
        p50_ns=columns.p50_ns,
        p99_ns=columns.p99_ns,
        static_bytes=static_bytes,
        dynamic_bytes=columns.dynamic_bytes,
        file_bytes=about.file_bytes,
        load_ns=load_ns,
        swap_in_ns=swap_in_ns,
        accuracy=about.accuracy,
        recall=tuple(about.recall),
        input=about.input,
        device=device.name,
    )
    return ProfilerOutcome(profile, columns.runs, _raised(about.name, columns))


def _static_bytes(model: LoadedModel, grown: int) -> int:
    """Bytes that the model reports; else the growth of the process when it was loaded."""
    tell = getattr(model, "static_bytes", None)
    return int(tell()) if tell is not None else max(0, grown)


def _swap_in_ns(model: LoadedModel, device: Device, clock: Callable[[], int]) -> int:
    """Median time to bring the weights back from host memory; 0 where the model cannot move."""
    move = getattr(model, "to", None)
    if move is None:
        return 0
    taken: list[int] = []
    for _ in range(SWAPS):
        move("cpu")
        device.synchronize()
        started_ns = clock()
        move("cuda")
        device.synchronize()
        taken.append(clock() - started_ns)
    return percentile(sorted(taken), 50)


def _ways(
    model: LoadedModel, cuda: bool, graphs: bool
) -> tuple[Callable[[Any], object], Callable[[int], Any]]:
    """How to run a batch, and how to make one ready to run."""
    if not cuda or not (hasattr(model, "forward") and hasattr(model, "finish")):
        return model, model.card.make_batch
    import torch

    def stage(size: int) -> Any:
        # Staged untimed: a backend brings inputs over while the batch before them runs.
        return torch.from_numpy(model.card.make_batch(size)).cuda()

    def run(batch: Any) -> object:
        with torch.inference_mode():
            return model.finish(model.forward(batch).float().cpu().numpy())

    def capture(size: int) -> Any:
        return _capture(model, stage(size))

    def replay(captured: tuple[Any, Any, Any, Any]) -> object:
        graph, fixed, output, batch = captured
        fixed.copy_(batch)
        graph.replay()
        return model.finish(output.float().cpu().numpy())

    return (replay, capture) if graphs else (run, stage)


def _capture(model: Any, batch: Any) -> tuple[Any, Any, Any, Any]:
    """A CUDA graph of one batch size, the memory it reads, what it writes, and a batch."""
    import torch

    cuda: Any = torch.cuda
    fixed = batch.clone()
    graph = cuda.CUDAGraph()
    with torch.inference_mode():
        aside = cuda.Stream()
        aside.wait_stream(cuda.current_stream())
        # Kernels choose their algorithms and workspaces in the first runs, which a capture forbids.
        with cuda.stream(aside):
            for _ in range(3):
                model.forward(fixed)
        cuda.current_stream().wait_stream(aside)
        with cuda.graph(graph):
            output = model.forward(fixed)
    return graph, fixed, output, batch


def _raised(name: str, columns: Columns) -> tuple[Raised, ...]:
    """Each value that had to be raised, in milliseconds, as people read them."""
    return tuple(
        Raised(
            "measured",
            name,
            column,
            columns.batches[change.index],
            change.before / NS_PER_MS,
            change.after / NS_PER_MS,
        )
        for column, changes in (("p50", columns.raised_p50), ("p99", columns.raised_p99))
        for change in changes
    )
