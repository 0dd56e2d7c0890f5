"""`fermata profile`."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Grid

from fermata.commands.judging.options import (
    Boxes,
    Every,
    Fit,
    Frames,
    LabelledData,
    Mean,
    Metric,
    Reference,
    Std,
    Video,
)
from fermata.commands.progress import progress_bar
from fermata.deployments.models.sizes import split_size
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import check_batches, check_positive, refuse
from fermata.profiles.devices import choose_device, open_device
from fermata.profiles.measure import Device, MeasureEffort, Row
from fermata.profiles.profile import ms
from fermata.profiles.profiler import LoadedModel, ProfilerOutcome, profile_model
from fermata.profiles.store import NS_PER_MS, Table, save_file

BATCHES_MAX = 32
BATCH_SIZE_MAX = 4096


Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="digits:small, imagenet:lite0@224, text:topics@64, faces:centerface@320, "
        "objects:yolov4-tiny@416, torchvision:resnet50, transformers:distilbert@128, "
        "module:function, or an ONNX, "
        "TorchScript or exported file.",
    ),
]
OutputPath = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Profile file to write.")
]
Batches = Annotated[str, typer.Option(help="Batch sizes, ascending from 1, with commas.")]
InputSizes = Annotated[
    str, typer.Option(help="Sides of pictures, with commas: each model at each of them.")
]
DeviceName = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int, typer.Option(help="CPU threads for one batch.", min=1)]
Graphs = Annotated[bool, typer.Option(help="CUDA graphs, on a GPU.")]
Half = Annotated[bool, typer.Option(help="16-bit floats, on a GPU.")]
BudgetMs = Annotated[float, typer.Option(help="Time for each model and batch size.")]
InputShape = Annotated[
    str, typer.Option("--input", help="One input of a function's or file's model: 3x224x224.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def profile(
    models: Models,
    output: OutputPath,
    batches: Batches = "1,2,4,8",
    input_sizes: InputSizes = "",
    device: DeviceName = "auto",
    threads: Threads = 1,
    graphs: Graphs = True,
    half: Half = True,
    budget_ms: BudgetMs = 3000,
    input_shape: InputShape = "",
    data: LabelledData = None,
    video: Video = "",
    reference: Reference = "",
    frames: Frames = 100,
    every: Every = 1,
    metric: Metric = "map",
    boxes: Boxes = "",
    mean: Mean = "",
    std: Std = "",
    fit: Fit = "",
    as_json: AsJson = False,
) -> None:
    """Measure what models cost on this machine: run time by batch size, memory, load time; and
    with --data or --video how good they are."""
    # Imported here: `fermata` without arguments must not wait for torch.
    from fermata.commands.judging import judge

    # A user's functions lie here, and must not be hidden by modules of the same name.
    sys.path.insert(0, os.getcwd())
    sizes = read_batches(batches)
    shape = read_shape(input_shape)
    check_positive("budget_ms", budget_ms)
    models = at_sizes(models, input_sizes)
    _check_names(models)
    if not output.parent.is_dir():
        refuse("output", str(output), f"must be in a folder that exists, {output.parent} does not")
    test = judge.read_video(video, reference, frames, every, metric, (boxes, mean, std, fit))
    labelled = None if data is None else judge.read_labelled(data)
    kind = choose_device(device)
    place = open_device(kind, threads)
    cuda = kind == "cuda"
    floats = "float16" if cuda and half else "float32"
    modes = [kind, *["CUDA graphs"] * (cuda and graphs), floats, f"budget {budget_ms:g} ms a size"]
    effort = MeasureEffort(budget_ns=ms(budget_ms))
    openers = [_opener(name, kind, half and cuda, shape) for name in models]
    with progress_bar(counted=True) as progress:
        outcomes = _measure(progress, models, openers, sizes, place, effort, cuda, graphs and cuda)
        if labelled is not None:
            outcomes = judge.judge_labelled(progress, outcomes, openers, labelled)
        if test is not None:
            asked = _opener(reference, kind, half and cuda, shape)
            outcomes = judge.judge_video(progress, outcomes, openers, test, reference, asked)
    profiles = tuple(outcome.profile for outcome in outcomes)
    source = ", ".join(["fermata profile", *modes])
    save_file(output, Table(output.stem, place.name, source, profiles))
    if as_json:
        print(_report(output, place.name, outcomes))
        return
    _show(output, place.name, outcomes)


def _check_names(models: Sequence[str]) -> None:
    from fermata.deployments.models.catalog import parse_name

    for index, name in enumerate(models):
        parse_name(name)
        if name in models[:index]:
            refuse("MODEL", name, "is named twice")


def read_batches(text: str) -> tuple[int, ...]:
    """Batch sizes from `1,2,4,8`, or a ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > BATCHES_MAX or not all(part.isdecimal() and len(part) < 6 for part in parts):
        rule = f"must be at most {BATCHES_MAX} whole numbers with commas, as in 1,2,4,8"
        refuse("batches", text, rule)
    sizes = tuple(map(int, parts))
    check_batches("batches", sizes)
    if sizes[-1] > BATCH_SIZE_MAX:
        refuse(f"batches[{len(sizes) - 1}]", sizes[-1], f"must be at most {BATCH_SIZE_MAX}")
    return sizes


def at_sizes(models: list[str], text: str) -> list[str]:
    """Each model at each side in `128,224`, as in `faces:centerface@128`; as given where empty."""
    if not text:
        return models
    sides = [part.strip() for part in text.split(",")]
    if not all(side.isdecimal() and len(side) < 5 and int(side) for side in sides):
        refuse("input_sizes", text, "must be sides of 1 to 9999 pixels with commas, as in 128,224")
    for name in models:
        if name.startswith(("text:", "transformers:")):
            refuse("MODEL", name, "takes text and has no side; leave out --input-sizes")
        if split_size(name)[1] is not None:
            refuse("MODEL", name, "has a size already; leave it out, or leave out --input-sizes")
    return [f"{name}@{side}" for name in models for side in sides]


def read_shape(text: str) -> tuple[int, ...] | None:
    """The sides in `3x224x224`; None where empty."""
    if not text:
        return None
    parts = text.split("x")
    if not all(part.isdecimal() and len(part) < 8 and int(part) for part in parts):
        refuse("input", text, "must be sides of at least 1 with x between them, as in 3x224x224")
    return tuple(map(int, parts))


def _opener(
    name: str, device: str, half: bool, shape: tuple[int, ...] | None
) -> Callable[[], LoadedModel]:
    def open_one() -> LoadedModel:
        from fermata.deployments.backend.models.measured_model import open_measured

        return open_measured(name, device, half, shape)

    return open_one


def _measure(
    progress: Progress,
    names: list[str],
    openers: list[Callable[[], LoadedModel]],
    sizes: tuple[int, ...],
    device: Device,
    effort: MeasureEffort,
    cuda: bool,
    graphs: bool,
) -> list[ProfilerOutcome]:
    task = progress.add_task("profiling", total=len(names) * len(sizes))
    outcomes: list[ProfilerOutcome] = []
    for name, opener in zip(names, openers, strict=True):
        progress.update(task, description=f"{name}: loading")

        def tell(row: Row, name: str = name) -> None:
            shown = f"{name}: batch {row.size} takes {row.p50_ns / NS_PER_MS:.3g} ms"
            progress.update(task, advance=1, description=shown)

        outcome = profile_model(
            opener,
            sizes,
            device,
            time.perf_counter_ns,
            effort=effort,
            cuda=cuda,
            graphs=graphs,
            on_row=tell,
        )
        if any(outcome.profile.name == other.profile.name for other in outcomes):
            raise ConfigError(f"{name} is the same as {outcome.profile.name}, named before it")
        outcomes.append(outcome)
    return outcomes


def _report(output: Path, device: str, outcomes: list[ProfilerOutcome]) -> str:
    """The outcomes as one JSON object."""
    return json.dumps(
        {
            "file": str(output),
            "device": device,
            "profiles": [{**asdict(each.profile), "runs": each.runs} for each in outcomes],
            "raised": [asdict(change) for each in outcomes for change in each.raised],
        }
    )


def _show(output: Path, device: str, outcomes: list[ProfilerOutcome]) -> None:
    console = Console()
    grid = Grid(title=device)
    for heading in ("model", "accuracy", "weights MB", "load ms", "size", "p50 ms", "p99 ms"):
        grid.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=True)
    for outcome in outcomes:
        found = outcome.profile
        right = "" if found.accuracy is None else f"{found.accuracy:.3f}"
        about = [found.name, right, f"{found.static_bytes / 2**20:.3g}"]
        about.append(f"{found.load_ns / NS_PER_MS:.3g}")
        for size, p50_ns, p99_ns in zip(found.batches, found.p50_ns, found.p99_ns, strict=True):
            cells = [str(size), f"{p50_ns / NS_PER_MS:.3g}", f"{p99_ns / NS_PER_MS:.3g}"]
            grid.add_row(*about, *cells)
            about = [""] * len(about)
    console.print(grid)
    for outcome in outcomes:
        for line in _raised(outcome):
            console.print(line, soft_wrap=True)
    console.print(f"written: {output}", soft_wrap=True)


def _raised(outcome: ProfilerOutcome) -> list[str]:
    """One line for each column that fell as batches grew, and had to be raised."""
    lines: list[str] = []
    for column in ("p50", "p99"):
        changes = [change for change in outcome.raised if change.column == column]
        if changes:
            most = max(changes, key=lambda change: change.after_ms / change.before_ms)
            sizes = ", ".join(str(change.batch) for change in changes)
            lines.append(
                f"{outcome.profile.name}: raised {column} of batch {sizes} to that of the size "
                f"before; the most at {most.batch}, {most.before_ms:.3g} -> {most.after_ms:.3g} ms"
            )
    return lines
