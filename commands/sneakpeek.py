"""`fermata sneakpeek`."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fermata.commands.files.look_worth import LookWorth, look_worth
from fermata.foundation.refusals import refuse

if TYPE_CHECKING:
    from fermata.deployments.sneakpeek.building import BuiltModel
    from fermata.deployments.sneakpeek.labelled_data import LabelledData

app = typer.Typer(
    name="sneakpeek",
    help="Models that peek at requests: built from labelled data, used by the frontends.",
    no_args_is_help=True,
)
SHOWN = 20
"""Classes, and pairs of them, that are printed: the worst ones."""
LOOKS = 5
FITS = ("centre", "whole", "stretch", "crop")


@app.callback()
def sneakpeek() -> None:
    """Models that peek at requests: built from labelled data, used by the frontends."""


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A folder with a folder of pictures for each class, a CSV with the columns text "
        "and label, an .npz with samples [n, ...] and labels [n] from 0 up, or `digits`, "
        "the embedded digits that models are trained on.",
    ),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="SneakPeek model to write.")
]
EmbeddingName = Annotated[
    str,
    typer.Option(
        help="What is compared: raw inputs, imagenet:lite0[@SIDE[/BLOCKS]], text:vectors or "
        "module:function. auto: lite0 for pictures, text:vectors for texts, else raw."
    ),
]
Dimensions = Annotated[
    int | None,
    typer.Option(
        help="Principal components to compare; 0: every feature. Chosen by held-out data "
        "where absent.",
        min=0,
    ),
]
Kind = Annotated[
    str,
    typer.Option(help="auto (by size), exact, ivf (large sets) or hnsw (the largest, and faster)."),
]
LabelNames = Annotated[
    str, typer.Option(help="Names of classes in the order of answers, with commas.")
]

Variants = Annotated[
    Path | None,
    typer.Option(
        "--for",
        metavar="FILE",
        help="A scenario or serving file: simulate what the look is worth for its variants.",
    ),
]


@app.command()
def build(
    data: Data,
    output: Output,
    embedding: EmbeddingName = "auto",
    dimensions: Dimensions = None,
    k: Annotated[int, typer.Option(help="Neighbours that vote.", min=1)] = 5,
    kind: Kind = "auto",
    size: Annotated[
        int, typer.Option(help="Side of pictures as the application gets them, pixels.", min=8)
    ] = 224,
    fit: Annotated[
        str, typer.Option(help="How pictures are fitted: centre, whole, stretch or crop.")
    ] = "centre",
    tokens: Annotated[int, typer.Option(help="Tokens of a text.", min=1, max=512)] = 64,
    labels: LabelNames = "",
    skip_unreadable: Annotated[
        bool, typer.Option(help="Leave out pictures that cannot be read.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where samples are embedded: cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed for the split into index and calibration.")] = 0,
    variants: Variants = None,
    rate_rps: Annotated[
        float | None, typer.Option(help="Requests per second for --for; else the file's own.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Index labelled samples by an embedding, and calibrate on a quarter of them held out."""
    from fermata.deployments.sneakpeek.building import BuildOptions
    from fermata.deployments.sneakpeek.building import build as build_from
    from fermata.deployments.sneakpeek.store import save_model

    names = tuple(each.strip() for each in labels.split(",") if each.strip())
    found = _open(data, size, fit, tokens, names, skip_unreadable)
    options = BuildOptions(dimensions, k, kind, seed, _chosen(embedding, data), device)
    began = time.monotonic()
    with _progress() as progress:
        task = progress.add_task("reading", total=len(found.labels))

        def tell(stage: str, done: int, total: int) -> None:
            progress.update(task, description=stage, completed=done, total=total)

        built = build_from(found, options, tell)
    save_model(output, built.model)
    summary = _summary(output, found, built, time.monotonic() - began, device)
    if variants is not None:
        summary = replace(summary, worth=look_worth(variants, built.model, output, rate_rps))
    if as_json:
        print(json.dumps(asdict(summary)))
    else:
        _show(Console(), summary)


def _open(
    data: str, size: int, fit: str, tokens: int, names: tuple[str, ...], skip: bool
) -> "LabelledData":
    from fermata.deployments.models.digits import training_data
    from fermata.deployments.sneakpeek import labelled_data as held

    path = Path(data)
    if data == "digits":
        return held.ArrayData(*training_data())
    if path.is_dir():
        if fit not in FITS:
            refuse("fit", fit, f"must be one of {', '.join(FITS)}")
        return held.FolderData(path, size, fit, names, skip)
    if path.suffix == ".csv":
        return held.TextData(path, tokens, names)
    return held.ArchiveData(path)


def _chosen(embedding: str, data: str) -> str:
    """The embedding; `auto` goes by what the data is."""
    if embedding != "auto":
        return embedding
    if Path(data).is_dir():
        return "imagenet:lite0"
    return "text:vectors" if Path(data).suffix == ".csv" else "raw"


@dataclass(frozen=True, slots=True)
class Summary:
    """A SneakPeek model that has been built, as it is told."""

    file: str
    samples: int
    unreadable: int
    classes: int
    names: list[str]
    kind: str
    embedding: str
    dimensions: int
    accuracy: float
    recall: list[float]
    held_out: list[int]
    """Held-out samples of each class."""
    confused: list[tuple[int, int, int]]
    """(true class, class named, how often), of held-out samples."""
    sharpness: float
    data: str
    took_s: float
    look_ms: float
    """Time of one look alone, on one core."""
    us_a_request: float
    """Time of one of 64 looks together."""
    device_us: float
    """The same on the device that samples were embedded on."""
    worth: LookWorth | None = None
    """What looks are worth for some variants."""

    def name(self, number: int) -> str:
        return self.names[number] if self.names else str(number)


def _summary(
    output: Path, data: "LabelledData", built: "BuiltModel", took_s: float, device: str
) -> Summary:
    model, index = built.model, built.model.index
    named = built.votes.argmax(axis=1)
    counts = np.zeros((index.classes, index.classes), np.int64)
    np.add.at(counts, (built.labels, named), 1)
    apart = counts - np.diag(np.diag(counts))
    order = np.argsort(-apart, axis=None, kind="stable")[: np.count_nonzero(apart)]
    pairs = [(int(each // index.classes), int(each % index.classes)) for each in order]
    look_ms, together_ms, device_ms = _times(data, built, device)
    return Summary(
        file=str(output),
        samples=built.samples,
        unreadable=len(data.labels) - built.samples,
        classes=index.classes,
        names=list(model.names),
        kind=index.kind,
        embedding=model.embedding,
        dimensions=index.faiss.d,
        accuracy=round(model.accuracy, 4),
        recall=[round(each, 4) for each in model.peek.recall],
        held_out=counts.sum(axis=1).tolist(),
        confused=[(true, name, int(apart[true, name])) for true, name in pairs],
        sharpness=model.peek.sharpness,
        data=model.data,
        took_s=round(took_s, 1),
        look_ms=round(look_ms, 3),
        us_a_request=round(1e3 * together_ms, 1),
        device_us=round(1e3 * device_ms, 1),
    )


def _times(data: "LabelledData", built: "BuiltModel", device: str) -> tuple[float, float, float]:
    """Milliseconds of a look alone and of one of 64 together, on one core as in a frontend; and of
    one of 64 on the device."""
    model = built.model
    if device == "cpu":
        model.warm_up()
    samples = [row for _, rows in data.parts(np.arange(min(64, len(data.labels)))) for row in rows]
    on_device = min(_took_ms(lambda: model.look(samples, device)) for _ in range(LOOKS))
    model.warm_up()
    alone = min(_took_ms(lambda: model.look(samples[:1])) for _ in range(LOOKS))
    together = on_device if device == "cpu" else _took_ms(lambda: model.look(samples))
    return alone, together / len(samples), on_device / len(samples)


def _took_ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


def _show(console: Console, summary: Summary) -> None:
    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False)

    say(
        f"{summary.samples} samples of {summary.classes} classes, {summary.embedding} in "
        f"{summary.dimensions} dimensions, {summary.kind} index, {summary.took_s:g} s"
    )
    if summary.unreadable:
        say(f"{summary.unreadable} samples could not be read and were left out")
    table = Table("class", "held out", "right")
    for number in sorted(range(summary.classes), key=summary.recall.__getitem__)[:SHOWN]:
        held, right = summary.held_out[number], summary.recall[number]
        table.add_row(summary.name(number), str(held), f"{right:.1%}")
    console.print(table)
    if summary.classes > SHOWN:
        say(f"the worst {SHOWN} of {summary.classes} classes; --json has all")
    for true, named, count in summary.confused[:SHOWN]:
        of = summary.held_out[true]
        say(f"{summary.name(true)} was taken for {summary.name(named)} {count} times of {of}")
    say(
        f"right {summary.accuracy:.1%} of the time on held-out samples; a look takes "
        f"{summary.look_ms:.3g} ms alone, {summary.us_a_request:.0f} us of 64 together"
    )
    if (worth := summary.worth) is not None:
        say(
            f"utility of {worth.application} at {worth.rate_rps:g} requests/s, simulated: "
            f"{worth.with_looks:.3f} with looks, {worth.without:.3f} without"
        )
    say(f"written: {summary.file}")


def _progress() -> Progress:
    # On standard error: standard output is for what a script may read.
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
