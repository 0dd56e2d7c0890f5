"""`fermata load`: open-loop load on a running server."""

import json
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fermata.clients.describe import ModelDescription, describe, sample_input, sample_more
from fermata.clients.load.adaptive import AdaptiveSender
from fermata.clients.load.arrivals import SendTimes, cameras, gamma, poisson, single, trace
from fermata.clients.load.ledger import LoadLedger
from fermata.clients.load.report import LoadReport, report
from fermata.clients.load.run import LoadStopped, run_load
from fermata.clients.load.sender import SenderOptions, Target
from fermata.clients.wire.errors import WireError
from fermata.commands.files.workload import LoadOptions, is_serving_file, load_workload
from fermata.commands.server_access import (
    CaFile,
    CertificateFile,
    KeyFile,
    ServerName,
    TokenEnv,
    TokenFile,
    access_of,
)
from fermata.commands.streaming.adaptive_load import adaptive
from fermata.commands.streaming.camera import Camera
from fermata.commands.streaming.uplinks import read_uplink
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms, seconds
from fermata.foundation.validation import read_yaml
from fermata.simulator.arrivals import generate
from fermata.simulator.scenario.scenario import Scenario as SimulatedLoad

Model = Annotated[str, typer.Option(help="Model to send to.")]
Server = Annotated[str, typer.Option(help="host:port of a frontend's gRPC.")]
Rate = Annotated[float, typer.Option(help="Requests a second; a trace is scaled to it.")]
Duration = Annotated[float, typer.Option(help="Measured time, after the warm-up.")]
Warmup = Annotated[float, typer.Option(help="Seconds of unmeasured load before the measurement.")]
Shape = Annotated[
    float, typer.Option(help="Shape of the Gamma inter-arrival times; below 1 is bursty.")
]
Fps = Annotated[
    float, typer.Option(help="Frames per second of each camera; --rate / --fps cameras send.")
]
Phase = Annotated[str, typer.Option(help="Cameras: locked, staggered or random.")]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="JSON list of rates, one a second.")
]
Slo = Annotated[float | None, typer.Option(help="SLO in ms; default: the model's own.")]
Priority = Annotated[int, typer.Option(help="1 is highest, 0 the default.")]
Scenario = Annotated[
    Path | None,
    typer.Option(help="Send the load of a scenario instead, or --rate to a serving file's models."),
]
Size = Annotated[str, typer.Option(help="Size of generated pictures, WIDTHxHEIGHT.")]
Processes = Annotated[
    int, typer.Option(help="Sender processes; each sends about 2,000 requests/s.")
]
Adapt = Annotated[
    bool,
    typer.Option(
        help="Cameras that follow their networks, each a client of its own: with --arrivals "
        "cameras and a model that takes pictures."
    ),
]
Uplink = Annotated[
    str,
    typer.Option(
        metavar="MBPS|FILE",
        help="With --adapt: emulate an uplink for each camera, of Mbit/s or a CSV file with "
        "columns t_s and mbps, which each begins at another step.",
    ),
]
FilmOption = Annotated[
    str, typer.Option("--film", help="With --adapt: the video that every camera sees.")
]
Streams = Annotated[int, typer.Option(help="gRPC streams per sender process.")]
Unary = Annotated[bool, typer.Option(help="A call for each request, no streams.")]
LedgerFile = Annotated[Path | None, typer.Option(help="Write what became of each request (.npz).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Ask = Callable[[str], ModelDescription]
"""The server's description of a model."""


class Process(StrEnum):
    """When requests are due."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CAMERAS = "cameras"
    TRACE = "trace"


def load(
    model: Model = "",
    server: Server = "127.0.0.1:8001",
    rate: Rate = 100,
    duration_s: Duration = 10,
    warmup_s: Warmup = 1,
    arrivals: Annotated[Process, typer.Option(help="When requests are due.")] = Process.POISSON,
    shape: Shape = 0.5,
    fps: Fps = 30,
    phase: Phase = "random",
    trace_file: TraceFile = None,
    slo_ms: Slo = None,
    priority: Priority = 0,
    scenario: Scenario = None,
    size: Size = "640x360",
    processes: Processes = 1,
    adapt: Adapt = False,
    uplink: Uplink = "",
    film: FilmOption = "carphone_pristine",
    streams: Streams = 8,
    unary: Unary = False,
    seed: int = 0,
    ledger: LedgerFile = None,
    token_file: TokenFile = "",
    token_env: TokenEnv = "",
    ca_file: CaFile = "",
    certificate_file: CertificateFile = "",
    key_file: KeyFile = "",
    server_name: ServerName = "",
    as_json: Json = False,
) -> None:
    """Send requests when they are due, whatever the server does, and say how many came back good.

    Latency counts from the moment a request was due. Refused, late, lost and unsent ones are bad.
    Ctrl-C ends the load early, and prints what it came to.
    """
    _check_adapts(adapt, uplink, arrivals, scenario)
    link = read_uplink(uplink)
    warmup_ns, total_ns = seconds(warmup_s), seconds(warmup_s + duration_s)
    access = access_of(token_file, token_env, ca_file, certificate_file, key_file, server_name)
    ask = partial(describe, server, access=access)
    try:
        if scenario is not None:
            given = _given(scenario, rate, duration_s)
            targets, due, warmup_ns, total_ns = scenario_load(given, ask, seed, size)
        else:
            targets = [_target(ask, model, slo_ms, priority, seed, size)]
            due = _due(arrivals, rate, total_ns, shape, fps, phase, trace_file, seed)
        options = SenderOptions(server, streams, unary, access)
        if adapt:
            camera = Camera("", film, model, fps, slo_ms, adapt, uplink=link)
            how = adaptive(options, camera, ask(model), priority)
            found = run_load(how, targets, due, processes, AdaptiveSender)
        else:
            found = run_load(options, targets, due, processes)
    except WireError as error:
        raise ConfigError(str(error)) from None
    except LoadStopped as early:
        found = early.ledger
    if ledger is not None:
        _save(found, ledger)
    stopped_ns = found.stopped_ns
    end_ns = total_ns if stopped_ns is None else min(total_ns, stopped_ns)
    if end_ns > warmup_ns:
        slo_ns = np.array([target.slo_ns for target in targets])
        _print(report(found, slo_ns, warmup_ns, end_ns), as_json)
    if stopped_ns is not None:
        typer.echo(_until(end_ns - warmup_ns, total_ns - warmup_ns), err=True)
        raise KeyboardInterrupt


def _check_adapts(adapt: bool, uplink: str, arrivals: Process, scenario: Path | None) -> None:
    if adapt and (arrivals is not Process.CAMERAS or scenario is not None):
        raise ConfigError("--adapt is for cameras: give --arrivals cameras and --model")
    if uplink and not adapt:
        raise ConfigError(f"--uplink={uplink} emulates networks that cameras follow: give --adapt")


def _until(measured_ns: int, meant_ns: int) -> str:
    if measured_ns <= 0:
        return "fermata: nothing was measured: the warm-up had not ended"
    return f"fermata: measured {measured_ns / 1e9:.1f} s of {meant_ns / 1e9:g} s"


def _print(result: LoadReport, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.to_dict()))
    else:
        Console().print(_table(result))


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not width.isdecimal() or not height.isdecimal() or not int(width) * int(height):
        raise ConfigError(f"size={text!r}: write WIDTHxHEIGHT, as in 640x360")
    return int(height), int(width)


def _target(
    ask: Ask, model: str, slo_ms: float | None, priority: int, seed: int, size: str
) -> Target:
    if not model:
        raise ConfigError("model is missing: give --model or --scenario")
    height, width = _size(size)
    found = ask(model)
    slo_ns = found.slo_ns if slo_ms is None else ms(slo_ms)
    if slo_ns <= 0:
        raise ConfigError(f"slo_ms={slo_ms}: give more than 0")
    tensor, more = sample_input(found, seed, height, width), sample_more(found, seed)
    return Target(model, tensor, slo_ns, priority, more=more)


def _due(
    process: Process,
    rate: float,
    total_ns: int,
    shape: float,
    fps: float,
    phase: str,
    trace_file: Path | None,
    seed: int,
) -> SendTimes:
    rng = np.random.default_rng(seed)
    if process is Process.POISSON:
        return single(poisson(rate, total_ns, rng))
    if process is Process.GAMMA:
        return single(gamma(rate, total_ns, shape, rng))
    if process is Process.CAMERAS:
        return single(*cameras(max(1, round(rate / fps)), fps, total_ns, phase, rng))
    if trace_file is None:
        raise ConfigError("arrivals=trace needs --trace FILE")
    rates = _trace_rates(trace_file)
    scale = rate / (sum(rates) / len(rates))
    return single(trace([each * scale for each in rates], seconds(1), total_ns, rng))


def _trace_rates(path: Path) -> list[float]:
    try:
        rates = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}; give a JSON list of rates") from None
    if not isinstance(rates, list) or not all(type(each) in (int, float) for each in rates):
        raise ConfigError(f"{path}: is no JSON list of rates")
    if not rates or min(rates) < 0 or sum(rates) <= 0:
        raise ConfigError(f"{path}: has no rate above 0, or one below")
    return [float(each) for each in rates]


def _given(path: Path, rate_rps: float, duration_s: float) -> SimulatedLoad:
    """A scenario with its own load, or a serving file with this one."""
    serves = is_serving_file(read_yaml(path))
    load = LoadOptions(rate_rps, duration_s=duration_s) if serves else LoadOptions()
    return load_workload(path, load)


def scenario_load(
    loaded: SimulatedLoad, ask: Ask, seed: int, size: str
) -> tuple[list[Target], SendTimes, int, int]:
    """(targets, arrivals, warm-up, end): one target for each application, SLO and priority."""
    drawn = generate(loaded)
    kinds, target = np.unique(
        np.stack([drawn.application, drawn.slo_ns, drawn.priority]), axis=1, return_inverse=True
    )
    height, width = _size(size)
    # Queries of pipelines are numbered behind the applications.
    names = [each.name for each in loaded.applications]
    names += [each.name for each in loaded.pipelines]
    targets: list[Target] = []
    for index, slo_ns, priority in kinds.T.tolist():
        found = ask(names[index])
        tensor, more = sample_input(found, seed, height, width), sample_more(found, seed)
        targets.append(Target(found.name, tensor, slo_ns, priority, more=more))
    due = SendTimes(drawn.at_ns, target.reshape(-1), drawn.client)
    return targets, due, loaded.warmup_ns, loaded.warmup_ns + loaded.duration_ns


def _save(ledger: LoadLedger, path: Path) -> None:
    columns: dict[str, NDArray[Any]] = {
        name: getattr(ledger, name)
        for name in ("scheduled_ns", "sent_ns", "answered_ns", "target", "client", "batch")
    }
    outcome = np.array(ledger.outcomes)[ledger.outcome]
    np.savez_compressed(path, allow_pickle=False, outcome=outcome, **columns)


def _table(result: LoadReport) -> Table:
    table = Table(show_header=False)
    latency = result.latency_ms
    refused = ", ".join(f"{name} {count:,}" for name, count in result.refused.items()) or "0"
    shown = " / ".join("-" if value is None else f"{value:.1f}" for value in latency.values())
    rows = [
        ("offered", f"{result.offered_rps:,.1f} req/s"),
        ("good", f"{result.goodput_rps:,.1f} req/s"),
        ("bad", f"{100 * result.bad_rate:.2f} %"),
        ("late / unsent / lost", f"{result.late:,} / {result.unsent:,} / {result.lost:,}"),
        ("refused", refused),
        (f"latency {' / '.join(latency)}", f"{shown} ms"),
        ("mean batch", "-" if result.mean_batch is None else f"{result.mean_batch:.1f}"),
    ]
    if result.worst_client_bad_rate is not None:
        rows.append(("worst client", f"{100 * result.worst_client_bad_rate:.2f} %"))
    if result.pacing_ms_p99 is not None:
        rows.append(("sent late, p99", f"{result.pacing_ms_p99:.1f} ms"))
    if result.duplicates or result.strangers:
        rows.append(("answered twice / unasked", f"{result.duplicates} / {result.strangers}"))
    for name, value in rows:
        table.add_row(name, value)
    return table
