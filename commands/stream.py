"""`fermata stream`: send a video and watch the answers come back."""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import gethostname
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from fermata.clients.describe import ModelDescription, describe
from fermata.clients.frames import PICTURES, check_source
from fermata.clients.pending import FrameResult
from fermata.clients.stream import FrameStream, StreamOptions
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
from fermata.deployments.models.video import NAMES, bundled_video
from fermata.foundation.errors import ConfigError
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import ms

INTERRUPTED = 130
BOXES_SHOWN = 8
"""The exit status of a command that Ctrl-C has ended."""
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
Top = Annotated[int, typer.Option(help="Classes to name for each frame.")]


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Quantiles over the frames with a result; None where there are none."""

    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """The figures of one stream."""

    requests: int
    good: int
    bad_rate: float
    slo_ms: float
    latency_ms: LatencySummary
    statuses: Mapping[str, int]
    variants: Mapping[str, int]


def stream(
    source: Source = "carphone_pristine",
    model: Model = "imagenet",
    server: Server = "127.0.0.1:8001",
    slo_ms: SloMs = None,
    fps: Fps = None,
    frames: Frames = None,
    client: Client = "",
    adapt: Adapt = False,
    accuracy_floor: AccuracyFloor = 0.0,
    variant: PinnedVariant = "",
    top: Top = 1,
    token_file: TokenFile = "",
    token_env: TokenEnv = "",
    ca_file: CaFile = "",
    certificate_file: CertificateFile = "",
    key_file: KeyFile = "",
    server_name: ServerName = "",
    as_json: AsJson = False,
) -> None:
    """Send the frames of a video to a model and show each answer with its latency."""
    film = _film(source)
    _check(film, fps, frames, adapt)
    access = access_of(token_file, token_env, ca_file, certificate_file, key_file, server_name)
    try:
        found = describe(server, model, access)
        if found.takes != "pictures":
            kind = found.takes if found.takes == "text" else f"{found.datatype} tensors"
            raise ConfigError(f"model {model!r} takes {kind}, not pictures")
        slo_ns = ms(slo_ms) if slo_ms is not None else found.slo_ns
        if slo_ns <= 0:
            raise ConfigError(f"slo_ms={slo_ms}: give more than 0")
        options = StreamOptions(
            slo_ns=slo_ns,
            fps=fps,
            client=client or (f"{gethostname()}-{os.getpid()}" if adapt else ""),
            input=found.input,
            output=found.output,
            classes=top if found.labels and found.output and not found.boxes else 0,
            adapt=adapt,
            boxes=found.boxes,
            boxes_axis=found.boxes_axis,
            fit=found.fit,
            accuracy_floor=accuracy_floor,
            variant=variant,
            access=access,
        )
        results: list[FrameResult] = []
        interrupted = _run(
            FrameStream(server, model, film, options), frames, found, as_json, results
        )
    except WireError as error:
        raise ConfigError(str(error)) from None
    summary = _summary(results, slo_ns)
    if as_json:
        print(json.dumps(asdict(summary) | {"frames": [_row(each) for each in results]}))
    else:
        _print_summary(summary)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _film(source: str) -> str:
    """The path of a bundled film; anything else is what it says."""
    if source not in NAMES or Path(source).exists():
        return source
    return str(bundled_video(source))


def _check(film: str, fps: float | None, frames: int | None, adapt: bool) -> None:
    """Refuse what cannot be, before anybody looks for a server."""
    if fps is not None and not 0 <= fps < math.inf:
        raise ConfigError(f"fps={fps:g}: give 0 or more")
    if frames is not None and frames < 1:
        raise ConfigError(f"frames={frames}: give 1 or more")
    try:
        check_source(film)
    except WireError as error:
        raise ConfigError(str(error)) from None
    if adapt and not fps:
        raise ConfigError("adapt needs the frame rate: give --fps above 0")
    if adapt and (Path(film).is_dir() or Path(film).suffix.lower() in PICTURES):
        raise ConfigError(f"adapt needs frames that it can resize: {film!r} is no video")


def _run(
    stream: FrameStream,
    frames: int | None,
    model: ModelDescription,
    as_json: bool,
    results: list[FrameResult],
) -> bool:
    """Show each answer as it comes, and keep it; true where the user has had enough."""
    console = Console(highlight=False)
    try:
        for result in stream:
            results.append(result)
            if not as_json:
                console.print(_line(result, model), soft_wrap=True)
            if frames is not None and len(results) >= frames:
                stream.stop()
                break
    except KeyboardInterrupt:
        # Answers that have come so far are worth a summary.
        return True
    return False


def _line(result: FrameResult, model: ModelDescription) -> str:
    head = f"{result.index:6d} {result.latency_ns / 1e6:7.1f} ms"
    if not result.ok:
        return f"{head}  [red]{result.status}[/red] {result.message[:80]}"
    said = " ".join(
        _boxes(array, model.boxes_axis) if name == model.boxes else _said(name, array)
        for name, array in result.outputs.items()
    )
    side = f" at {result.side}" if result.side else ""
    return f"{head}  {result.variant} (batch {result.batch_size}){side}  {said}"


def _said(name: str, array: Any) -> str:
    """Labels as they are, a tensor by its shape."""
    if array.dtype != object:
        return f"{name}{list(array.shape)}"
    named: list[str] = []
    for element in array.reshape(-1):
        score, _, rest = element.decode(errors="replace").partition(":")
        index, _, label = rest.partition(":")
        named.append(f"{label or index} {score[:5]}")
    return ", ".join(named)


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


def _summary(results: list[FrameResult], slo_ns: int) -> StreamSummary:
    latencies = np.array([each.latency_ns for each in results if each.ok])
    good = int((latencies <= slo_ns).sum())
    latency_ms = LatencySummary(None, None)
    if len(latencies):
        p50, p99 = np.percentile(latencies, (50, 99)) / 1e6
        latency_ms = LatencySummary(round(float(p50), 3), round(float(p99), 3))
    return StreamSummary(
        requests=len(results),
        good=good,
        bad_rate=1 - good / len(results) if results else 0.0,
        slo_ms=slo_ns / 1e6,
        latency_ms=latency_ms,
        statuses=dict(Counter(each.status for each in results)),
        variants=dict(Counter(each.variant for each in results if each.ok)),
    )


def _print_summary(summary: StreamSummary) -> None:
    latency = summary.latency_ms
    shown = "" if latency.p50 is None else f", p50 {latency.p50} ms, p99 {latency.p99} ms"
    Console(highlight=False).print(
        f"{summary.good} of {summary.requests} frames within {summary.slo_ms:g} ms{shown}"
    )
