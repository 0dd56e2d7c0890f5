"""`fermata top`: the live page's figures in the terminal."""

import json
import time
import urllib.error
import urllib.request
from typing import Annotated

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fermata.clients.access import OPEN, Access
from fermata.clients.wire.errors import WireError
from fermata.commands.server_access import CaFile, TokenEnv, TokenFile, access_of
from fermata.foundation.errors import ConfigError
from fermata.foundation.json_types import JsonObject
from fermata.router.telemetry.dashboard_frames import BackendFrame, DashboardFrame, read_frame
from fermata.router.telemetry.snapshot import CameraSnapshot, worst_first

ServerUrl = Annotated[
    str, typer.Option("--control", help="Address of the control plane, `control` in its config.")
]
Once = Annotated[bool, typer.Option("--once", help="Print one look and end.")]
Cameras = Annotated[
    bool,
    typer.Option(
        "--cameras",
        help="List each client that reports its network: bandwidth, sizes, variant, frame rate, "
        "misses, and the reason where it is left out.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one look as JSON and end.")]
EVERY_S = 1.0
STRIP = 40
"""Characters of a backend's last two seconds."""
STRIP_S = 2.0
WIDE = 160


def fetch(control: str, access: Access = OPEN, path: str = "frame") -> JsonObject:
    """The last second, as the page gets it; empty while the server starts."""
    url = f"{'https' if access.tls else 'http'}://{control}/{path}"
    try:
        asked = urllib.request.Request(url, headers=dict(access.headers()))
        with urllib.request.urlopen(asked, timeout=5, context=access.context()) as answer:
            return dict(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        raise ConfigError(f"{control}: {error.read().decode(errors='replace').strip()}") from None
    except WireError as error:
        raise ConfigError(str(error)) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{control} does not answer ({error}); is it serving?") from None


def read(control: str, document: JsonObject) -> DashboardFrame:
    try:
        return read_frame(document)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{control} sends frames that cannot be read ({error})") from None


def shown(frame: DashboardFrame) -> Group:
    """Tables of one frame."""
    head = Text.assemble(
        (f"{frame.title} ", "bold"),
        f"{sum(each.rps for each in frame.applications):,.0f} req/s, ",
        f"{frame.queued} queued, {frame.under_way} at backends, up {frame.at_s:,.0f} s",
    )
    return Group(head, _applications(frame), _backends(frame))


def _applications(frame: DashboardFrame) -> Table:
    table = Table()
    table.add_column("application", no_wrap=True)
    for heading in ("in time", "req/s", "p50, p99 of SLO", "batch", "accuracy", "worst", "bad"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("variants")
    for told in frame.applications:
        style = "green" if told.bad_rate <= 0.01 else "red"
        mix = ", ".join(f"{name} {share:.0%}" for name, share in told.variants.items() if share)
        table.add_row(
            told.name,
            Text(f"{1 - told.bad_rate:.2%}", style),
            f"{told.rps:,.0f}",
            f"{_ms(told.p50_ms)}, {_ms(told.p99_ms)} of {_ms(told.slo_ms)} ms",
            "-" if told.mean_batch is None else f"{told.mean_batch:.1f}",
            "-" if told.accuracy is None else f"{told.accuracy:.1%}",
            f"{told.worst_stream_bad_rate:.1%}" if told.streams else "-",
            f"{sum(told.bad.values()):,} of {told.requests:,}",
            mix,
        )
    return table


def shown_cameras(status: JsonObject) -> Table:
    """A row for each client that reports its network, those that miss most first."""
    table = Table()
    for heading in ("camera", "application", "variant"):
        table.add_column(heading, no_wrap=True)
    for heading in ("Mbit/s", "asked", "sent", "fps", "declared", "missed"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("left out because")
    for told in worst_first(_cameras(status)):
        lies = told.fps > 1.1 * told.declared_fps + 1
        table.add_row(
            told.client,
            told.application,
            told.variant or "-",
            f"{told.bandwidth_bps / 1e6:.1f}" if told.bandwidth_bps else "-",
            str(told.size_asked or "-"),
            str(told.size_sent or "-"),
            Text(f"{told.fps:.1f}", "red" if lies else ""),
            f"{told.declared_fps:.1f}",
            Text(f"{told.missed_share:.1%}", "red" if told.missed_share > 0.01 else "green"),
            told.reason,
        )
    return table


def _cameras(status: JsonObject) -> list[CameraSnapshot]:
    return msgspec.convert(status.get("cameras", []), list[CameraSnapshot])


def _watch_cameras(control: str, access: Access, once: bool, as_json: bool) -> None:
    status = fetch(control, access, "status")
    if as_json:
        print(json.dumps(status.get("cameras", [])))
        return
    if once:
        console = Console()
        console.width = console.width if console.is_terminal else WIDE
        console.print(shown_cameras(status))
        return
    with Live(shown_cameras(status), auto_refresh=False, screen=True) as screen:
        while True:
            time.sleep(EVERY_S)
            screen.update(shown_cameras(fetch(control, access, "status")), refresh=True)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _backends(frame: DashboardFrame) -> Table:
    table = Table()
    for heading in ("backend", "state", f"the last {STRIP_S:g} s"):
        table.add_column(heading)
    for backend in frame.backends:
        state = f"{backend.kind} {backend.state}"
        table.add_row(backend.name, state, strip(backend, frame.at_s))
    for number, each in enumerate(frame.sub_clusters):
        needed = "" if each.demand is None else f", {each.demand:.1f} needed with full batches"
        advised = "" if each.advised is None else f", {each.advised} advised"
        table.add_row(
            f"sub-cluster {number}",
            f"{each.backends} up{advised}",
            f"{each.idle:.0%} idle{needed}",
        )
    return table


def strip(backend: BackendFrame, at_s: float) -> Text:
    """Cells in which the backend ran; red where something was late."""
    cells = [" "] * STRIP
    styles = ["cyan"] * STRIP
    for batch in backend.batches:
        first = int(STRIP * (batch.start_s - at_s + STRIP_S) / STRIP_S)
        last = int(STRIP * (batch.end_s - at_s + STRIP_S) / STRIP_S)
        for cell in range(max(0, first), min(STRIP - 1, last) + 1):
            cells[cell] = "▇"
            if batch.late:
                styles[cell] = "red"
    return Text.assemble(*zip(cells, styles, strict=True))


def top(
    control: ServerUrl = "127.0.0.1:8000",
    once: Once = False,
    cameras: Cameras = False,
    token_file: TokenFile = "",
    token_env: TokenEnv = "",
    ca_file: CaFile = "",
    as_json: AsJson = False,
) -> None:
    """Watch a running server: applications, backends, what is late and why, once a second."""
    access = access_of(token_file, token_env, ca_file, "", "", "")
    if cameras:
        _watch_cameras(control, access, once, as_json)
        return
    document = fetch(control, access)
    # Batches are kept from the first look on.
    end_s = time.monotonic() + 30
    while not document and time.monotonic() < end_s:
        time.sleep(EVERY_S)
        document = fetch(control, access)
    if not document:
        raise ConfigError(f"{control} is still starting; try again")
    if as_json:
        print(json.dumps(document))
    elif once:
        console = Console()
        # A file or a pipe has no width of its own.
        console.width = console.width if console.is_terminal else WIDE
        console.print(shown(read(control, document)))
    else:
        with Live(shown(read(control, document)), auto_refresh=False, screen=True) as screen:
            while True:
                time.sleep(EVERY_S)
                screen.update(shown(read(control, fetch(control, access))), refresh=True)
