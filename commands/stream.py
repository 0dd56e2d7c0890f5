"""`fermata stream`: send a video and watch the answers come back."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape

from fermata.clients.access import Access
from fermata.clients.describe import ModelDescription
from fermata.clients.pending import FrameResult
from fermata.clients.stream import FrameStream
from fermata.clients.wire.errors import WireError
from fermata.commands.server_access import (
    CaFile,
    CertificateFile,
    KeyFile,
    ServerName,
    TokenEnv,
    TokenFile,
    access_of,
)
from fermata.commands.streaming.answers import labels_said, read_answer, stage_lines
from fermata.commands.streaming.camera import Camera, film, model_of_pictures, read_cameras
from fermata.commands.streaming.drawing import FrameDrawer
from fermata.commands.streaming.many import RunningCamera, run_cameras, table_of
from fermata.commands.streaming.summary import ResultCounts
from fermata.commands.streaming.uplinks import read_uplink
from fermata.foundation.errors import ConfigError
from fermata.foundation.json_types import JsonObject

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C has ended."""
BOXES_SHOWN = 8
WIDE = 160
"""A file or a pipe has no width of its own."""
Server = Annotated[str, typer.Option(help="host:port of a frontend's gRPC.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Video, picture, folder, camera number, rtsp:// address, or a bundled film: "
        "carphone_pristine, bikes, bigbuckbunny.",
    ),
]
Cameras = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="YAML file with a list of `cameras`, in place of SOURCE: name, source, and options "
        "of its own (model, fps, slo_ms, adapt, accuracy_floor, variant, uplink).",
    ),
]
Model = Annotated[str, typer.Option(help="Model that takes pictures.")]
SloMs = Annotated[
    float | None, typer.Option(help="From capture to answer; the model's own where absent.")
]
Fps = Annotated[
    float | None, typer.Option(help="Frames a second; the source's own, 0 for all it takes.")
]
Frames = Annotated[int | None, typer.Option(help="Stop after so many frames.")]
Client = Annotated[str, typer.Option(help="Name of this stream.")]
Adapt = Annotated[
    bool,
    typer.Option(
        help="Follow the network: send the size that the server asks for, or the largest that "
        "the uplink carries in time. Needs --fps and a video."
    ),
]
AccuracyFloor = Annotated[
    float, typer.Option(help="No less accurate variant may answer.", min=0, max=1)
]
PinnedVariant = Annotated[str, typer.Option(help="The only variant that may answer.")]
UplinkOption = Annotated[
    str,
    typer.Option(
        metavar="MBPS|FILE",
        help="Emulate an uplink: Mbit/s, or a CSV file with columns t_s and mbps.",
    ),
]
Draw = Annotated[
    str,
    typer.Option(
        metavar="FOLDER",
        help="Save each frame that is answered there, with boxes, classes and texts drawn into "
        "it; with --cameras, in a folder for each.",
    ),
]
Top = Annotated[int, typer.Option(help="Classes to name for each frame.")]


def stream(
    source: Source = "carphone_pristine",
    cameras: Cameras = "",
    model: Model = "imagenet",
    server: Server = "127.0.0.1:8001",
    slo_ms: SloMs = None,
    fps: Fps = None,
    frames: Frames = None,
    client: Client = "",
    adapt: Adapt = False,
    accuracy_floor: AccuracyFloor = 0.0,
    variant: PinnedVariant = "",
    uplink: UplinkOption = "",
    top: Top = 1,
    draw: Draw = "",
    token_file: TokenFile = "",
    token_env: TokenEnv = "",
    ca_file: CaFile = "",
    certificate_file: CertificateFile = "",
    key_file: KeyFile = "",
    server_name: ServerName = "",
    as_json: AsJson = False,
) -> None:
    """Send the frames of a video to a model and show each answer with its latency.

    With --cameras, send many at once and show a table of them; options are then what each camera
    of the file has unless it says otherwise."""
    if frames is not None and frames < 1:
        raise ConfigError(f"frames={frames}: give 1 or more")
    access = access_of(token_file, token_env, ca_file, certificate_file, key_file, server_name)
    shown = "" if cameras else film(source)
    one = Camera(
        client, shown, model, fps, slo_ms, adapt, accuracy_floor, variant, read_uplink(uplink)
    )
    try:
        if cameras:
            if client:
                raise ConfigError("--client names one stream: cameras have their names in the file")
            interrupted = _many(
                server, read_cameras(cameras, one), frames, top, draw, access, as_json
            )
        else:
            interrupted = _one(server, one, frames, top, draw, access, as_json)
    except WireError as error:
        raise ConfigError(str(error)) from None
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _one(
    server: str,
    camera: Camera,
    frames: int | None,
    top: int,
    draw: str,
    access: Access,
    as_json: bool,
) -> bool:
    camera.check()
    found = model_of_pictures(server, camera.model, access)
    options = replace(camera.options(found, top, access), keep_frames=bool(draw))
    drawer = FrameDrawer(Path(draw), found) if draw else None
    rows: list[JsonObject] | None = [] if as_json else None
    stream = FrameStream(server, camera.model, camera.source, options)
    counts = ResultCounts(options.slo_ns)
    interrupted = _run(stream, frames, found, counts, rows, drawer)
    if as_json:
        print(json.dumps(asdict(counts.summary()) | {"frames": rows}))
    else:
        Console(highlight=False).print(str(counts.summary()))
    return interrupted


def _many(
    server: str,
    cameras: Sequence[Camera],
    frames: int | None,
    top: int,
    draw: str,
    access: Access,
    as_json: bool,
) -> bool:
    models = {
        name: model_of_pictures(server, name, access) for name in {each.model for each in cameras}
    }
    running = [
        RunningCamera(
            each,
            replace(each.options(models[each.model], top, access), keep_frames=bool(draw)),
            FrameDrawer.of_camera(Path(draw), each.name, models[each.model]) if draw else None,
        )
        for each in cameras
    ]
    console = Console()
    interrupted = run_cameras(server, running, frames, console.is_terminal and not as_json)
    if as_json:
        told = [
            {"camera": each.camera.name, "trouble": each.trouble, **asdict(each.counts.summary())}
            for each in running
        ]
        print(json.dumps(told))
    else:
        console.width = console.width if console.is_terminal else WIDE
        console.print(table_of(running))
    if not interrupted and any(each.trouble for each in running):
        raise typer.Exit(1)
    return interrupted


def _run(
    stream: FrameStream,
    frames: int | None,
    model: ModelDescription,
    counts: ResultCounts,
    rows: list[JsonObject] | None,
    drawer: FrameDrawer | None,
) -> bool:
    """Count each answer as it comes, draw it where that is wanted, and show it or, where there are
    `rows`, add it to them. True where the user has had enough."""
    console = Console(highlight=False)
    try:
        for result in stream:
            counts.add(result)
            if drawer is not None:
                drawer.save(result)
            if rows is None:
                console.print(line_of(result, model), soft_wrap=True)
            else:
                rows.append(_row(result))
            if frames is not None and counts.requests >= frames:
                stream.stop()
                break
    except KeyboardInterrupt:
        # Answers that have come so far are worth a summary.
        return True
    return False


def line_of(result: FrameResult, model: ModelDescription) -> str:
    """An answer as the console prints it; of a pipeline, with a line for each stage."""
    head = f"{result.index:6d} {result.latency_ns / 1e6:7.1f} ms"
    if not result.ok:
        return f"{head}  [red]{result.status}[/red] {escape(result.message[:80])}"
    side = f" at {result.side}" if result.side else ""
    by = f"{head}  {escape(result.variant)} (batch {result.batch_size}){side}"
    answer = read_answer(result.outputs, model)
    if answer is not None:
        lines = stage_lines(answer, model.stage_boxes)
        return "\n".join([by, *(f"{'':8}{escape(each)}" for each in lines)])
    said = " ".join(
        _boxes(array, model.boxes_axis) if name == model.boxes else _said(name, array)
        for name, array in result.outputs.items()
    )
    return f"{by}  {escape(said)}"


def _said(name: str, array: Any) -> str:
    """Labels as they are, a tensor by its shape."""
    if array.dtype != object:
        return f"{name}{list(array.shape)}"
    return labels_said(array)


def _boxes(array: Any, axis: str) -> str:
    """The first boxes, each by its four numbers, with its score where the row has one."""
    rows = array if axis == "last" else np.moveaxis(array, -2, -1)
    rows = rows.reshape(-1, rows.shape[-1]) if rows.size else rows[:0]
    found: list[str] = []
    for first, second, third, fourth, *more in rows[:BOXES_SHOWN]:
        score = f" {more[0]:.2f}" if more else ""
        found.append(f"({first:.0f},{second:.0f})-({third:.0f},{fourth:.0f}){score}")
    found += [f"and {len(rows) - BOXES_SHOWN} more"] * (len(rows) > BOXES_SHOWN)
    return "  ".join(found) or "nothing"


def _row(result: FrameResult) -> JsonObject:
    return {
        "index": result.index,
        "status": result.status,
        "latency_ms": round(result.latency_ns / 1e6, 3),
        "variant": result.variant,
        "side": result.side,
        "batch_size": result.batch_size,
        "attempts": result.attempts,
        "outputs": {name: _plain(array) for name, array in result.outputs.items()},
    }


def _plain(array: Any) -> Any:
    if array.dtype == object:
        return [element.decode(errors="replace") for element in array.reshape(-1)]
    return array.tolist() if array.size <= 1000 else list(array.shape)
