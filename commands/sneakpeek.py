"""`fermata sneakpeek`."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    name="sneakpeek",
    help="Models that peek at requests: built from labelled data, used by the frontends.",
    no_args_is_help=True,
)


@app.callback()
def sneakpeek() -> None:
    """Models that peek at requests: built from labelled data, used by the frontends."""


@app.command()
def build(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="An .npz with samples [n, ...] and labels [n] from 0 up, or `digits`, "
            "the embedded digits that models are trained on.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="SneakPeek model to write.")
    ],
    dimensions: Annotated[
        int, typer.Option(help="Principal components to compare; 0: every feature.", min=0)
    ] = 3,
    k: Annotated[int, typer.Option(help="Neighbours that vote.", min=1)] = 5,
    kind: Annotated[
        str, typer.Option(help="auto, exact, ivf (large sets) or hnsw (large sets, faster).")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Seed for the split into index and calibration.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Index labelled training data, and calibrate on a quarter of it held out."""
    from fermata.deployments.models.digits import training_data
    from fermata.deployments.sneakpeek.store import build_model, read_data, save_model

    samples, labels = training_data() if data == "digits" else read_data(Path(data))
    model = build_model(samples, labels, dimensions, k, kind, seed)
    began = time.perf_counter()
    model.index.votes(samples[:256])
    each_us = 1e6 * (time.perf_counter() - began) / min(256, len(samples))
    save_model(output, model)
    about = {
        "file": str(output),
        "samples": len(samples),
        "classes": model.index.classes,
        "kind": model.index.kind,
        "accuracy": round(model.accuracy, 4),
        "recall": [round(each, 4) for each in model.peek.recall],
        "sharpness": model.peek.sharpness,
        "data": model.data,
        "us_a_request": round(each_us, 1),
    }
    if as_json:
        print(json.dumps(about))
        return
    console = Console()
    console.print(
        f"{len(samples)} samples of {model.index.classes} classes, {model.index.kind} index; "
        f"right {model.accuracy:.1%} of the time on held-out samples, {each_us:.0f} us a request",
        soft_wrap=True,
    )
    console.print(f"written: {output}", soft_wrap=True)
