"""`fermata simulate` and `fermata goodput`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fermata.commands.files.sub_clusters import load_played
from fermata.commands.files.workload import (
    Arrivals,
    Backends,
    DurationS,
    FanOuts,
    LoadOptions,
    Profiles,
    RateRps,
    WorkloadPath,
)
from fermata.commands.progress import progress_bar
from fermata.foundation.errors import ConfigError
from fermata.router.policies.auto import notes
from fermata.router.telemetry.dashboard_frames import write_frames
from fermata.simulator.goodput import BAD_RATE_MAX, Goodput, find_goodput
from fermata.simulator.reports.record import Recorder
from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate as run_scenario

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
PlotPath = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Also draw the run as a PNG.")
]
RecordPath = Annotated[
    Path | None,
    typer.Option("--record", metavar="FILE", help="Also write what `fermata view` replays."),
]
APPLICATIONS_SHOWN = 12


def simulate(
    scenario: WorkloadPath,
    rate_rps: RateRps = None,
    backends: Backends = None,
    duration_s: DurationS = None,
    arrivals: Arrivals = "",
    profiles: Profiles = None,
    fan_outs: FanOuts = None,
    as_json: AsJson = False,
    plot: PlotPath = None,
    record: RecordPath = None,
) -> None:
    """Run a scenario through the scheduler that serves, on emulated backends and a virtual clock.

    The same file and seed give the same figures, to the last digit. A serving file is taken as it
    is: --rate-rps gives the load.
    """
    given = tuple(profiles or ()), tuple(fan_outs or ())
    load = LoadOptions(rate_rps, backends, duration_s, arrivals, *given)
    loaded = load_played(scenario, load)
    with progress_bar() as progress:
        task = progress.add_task("simulating", total=1.0)
        log = run_scenario(loaded, lambda done: progress.update(task, completed=done))
    result = report(loaded, log)
    if plot is not None:
        if loaded.scales:
            from fermata.simulator.reports.scaling_plot import draw_scaling as draw
        else:
            from fermata.simulator.reports.plots import draw_run as draw
        draw(loaded, log, plot)
    if record is not None:
        try:
            write_frames(Recorder(loaded, log, scenario.stem).frames(), str(record))
        except OSError as error:
            raise ConfigError(f"{record}: cannot be written ({error.strerror})") from None
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    console = Console()
    console.print(_summary(f"{scenario.name}: {loaded.policy}", result))
    if len(result.applications) > 1:
        console.print(_applications(result))
    for note in notes(loaded.applications, loaded.policy):
        console.print(note)
    if plot is not None:
        console.print(f"plot: {plot}")
    if record is not None:
        console.print(f"record: {record}; fermata view {record} replays it")


def goodput(
    scenario: WorkloadPath,
    backends: Backends = None,
    duration_s: DurationS = None,
    arrivals: Arrivals = "",
    profiles: Profiles = None,
    fan_outs: FanOuts = None,
    as_json: AsJson = False,
    plot: PlotPath = None,
) -> None:
    """Find the highest rate that the scenario's backends serve with at most 1 % bad.

    The rate is that of all applications together; the 1 % holds for each of them. Dropped and
    late requests are both bad. A serving file is taken as it is.
    """
    given = tuple(profiles or ()), tuple(fan_outs or ())
    load = LoadOptions(None, backends, duration_s, arrivals, *given)
    loaded = load_played(scenario, load, needs_rate=False)
    results: list[tuple[float, RunReport]] = []
    with progress_bar() as progress:
        task = progress.add_task("searching", total=None)

        def tell(rate_rps: float, result: RunReport) -> None:
            results.append((rate_rps, result))
            verdict = "good" if result.worst_bad_rate <= BAD_RATE_MAX else "bad"
            progress.update(task, description=f"{rate_rps:,.0f} req/s: {verdict}")

        found = find_goodput(loaded, tell)
    if plot is not None:
        from fermata.simulator.reports.plots import draw_search

        draw_search(results, found.goodput_rps, plot)
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    console = Console()
    console.print(_found(loaded.policy, found))
    console.print(_summary("at that rate", found.at))
    if plot is not None:
        console.print(f"plot: {plot}")


def _found(policy: str, found: Goodput) -> str:
    tried = len(found.rates_tried)
    if found.goodput_rps == 0.0:
        return f"{policy}: no rate keeps every application at 1 % bad ({tried} rates tried)"
    return f"{policy}: goodput {found.goodput_rps:,.0f} req/s ({tried} rates tried)"


def _number(value: float | None, unit: str = "", digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}{unit}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _summary(title: str, result: RunReport) -> Table:
    table = Table(title=title, show_header=False)
    drops = ", ".join(f"{reason} {count:,}" for reason, count in result.drops.items())
    rows = [
        ("offered", _number(result.offered_rps, " req/s")),
        ("good", _number(result.good_rps, " req/s")),
        ("bad", _percent(result.bad_rate)),
        ("worst application", _percent(result.worst_bad_rate)),
        ("worst stream", _percent(result.worst_stream_bad_rate)),
        ("late / dropped", f"{result.late:,} / {drops or 0}"),
        ("latency p50 / p99", f"{_number(result.p50_ms)} / {_number(result.p99_ms)} ms"),
        ("queue p50 / p99", f"{_number(result.queue_p50_ms)} / {_number(result.queue_p99_ms)} ms"),
        ("mean batch", _number(result.mean_batch)),
        ("backends idle", _percent(result.idle_fraction)),
        ("backends", _spent(result)),
        ("accuracy", _percent(result.accuracy)),
        ("requests", f"{result.requests:,} in {result.wall_s:.1f} s"),
    ]
    for name, value in rows:
        if not (value == "-" and name in ("worst stream", "accuracy")):
            table.add_row(name, value)
    return table


def _spent(result: RunReport) -> str:
    cost = f", cost {result.cost:,.2f}" if result.cost else ""
    return f"{result.backends_mean:.1f} on average, {result.backend_hours:,.3f} hours{cost}"


def _applications(result: RunReport) -> Table:
    worst = sorted(result.applications, key=lambda each: -each.bad_rate)
    more = max(0, len(worst) - APPLICATIONS_SHOWN)
    table = Table(title="applications, worst first", caption=f"and {more} more" if more else None)
    for heading in ("application", "requests", "bad", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading == "application" else "right")
    for each in worst[:APPLICATIONS_SHOWN]:
        table.add_row(
            each.name,
            f"{each.requests:,}",
            _percent(each.bad_rate),
            _number(each.p50_ms),
            _number(each.p99_ms),
        )
    return table
