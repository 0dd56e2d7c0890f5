"""`fermata policy ramsis`: solve and inspect tables, and plan workers."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from fermata.commands.files.workload import (
    Arrivals,
    LoadOptions,
    Profiles,
    WorkloadPath,
    load_workload,
)
from fermata.commands.simulation import AsJson
from fermata.foundation.refusals import check_fraction, check_number, check_positive, refuse
from fermata.router.policies.catalog import read_options
from fermata.router.policies.ramsis.chain.problem import WorkerProblem
from fermata.router.policies.ramsis.chain.solve import TableSolution, solve
from fermata.router.policies.ramsis.chain.variable import VariableSolution, solve_variable
from fermata.router.policies.ramsis.load_grid import peak_rps, solve_grid
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.slo_classes import share_out, slos_of
from fermata.simulator.scenario.scenario import Scenario
from fermata.simulator.worker_plan import (
    WorkerCount,
    WorkerGoal,
    fewest_workers,
    only_application,
    options_for,
    promised_fleet,
    simulated_fleet,
    worker_problem,
)

PLANNED = ("ramsis", "central-queue", "both")
LOAD_LOW = 0.02

ramsis = typer.Typer(
    help="Tables of RAMSIS: which variant a worker runs, by queue length, slack and load.",
    no_args_is_help=True,
)

ApplicationName = Annotated[
    str, typer.Option("--application", help="Which application, where the scenario has several.")
]
Load = Annotated[
    float,
    typer.Option("--load", "--rate-rps", help="Requests per second; 0: the scenario's rate_rps."),
]
Reward = Annotated[
    str | None,
    typer.Option(help="query: accuracy of the mean request. decision: of the mean batch."),
]
Balancing = Annotated[str | None, typer.Option(help="round-robin or shortest-queue.")]
Bins = Annotated[
    int | None,
    typer.Option(help="Steps in which slack is told apart; 0: where a batch begins to fit."),
]
Law = Annotated[
    str | None, typer.Option(help="Arrival distribution: poisson, bursty, or module:name.")
]


BurstMs = Annotated[float | None, typer.Option(help="Length of the bursts of --law bursty.")]


def _scenario(
    path: WorkloadPath, application: str, load_rps: float, load: LoadOptions
) -> tuple[Scenario, float]:
    scenario = only_application(load_workload(path, load, needs_rate=False), application)
    rate_rps = load_rps or scenario.rate_rps
    if rate_rps is None:
        refuse("--load", load_rps, "is needed where the scenario has no rate_rps")
    check_positive("--load", rate_rps)
    return scenario, rate_rps


def _options(scenario: Scenario, **flags: str | float | None) -> RamsisOptions:
    """The scenario's RAMSIS options, overridden by flags."""
    set_here = {name: value for name, value in flags.items() if value is not None}
    options = read_options("ramsis", {**options_for(scenario, "ramsis"), **set_here})
    assert isinstance(options, RamsisOptions)
    return options


Workers = Annotated[
    int, typer.Option("--workers", "--backends", help="0: the scenario's backends.")
]
EveryLoad = Annotated[
    bool, typer.Option("--every-load", help="Tables for the whole range, as a router has them.")
]
QueueMax = Annotated[
    int | None, typer.Option(help="Longest queue that the table knows; 0: the largest batch.")
]
SloMs = Annotated[float, typer.Option(help="Which of the scenario's slos_ms; 0: the tightest.")]
VariableBatching = Annotated[
    bool,
    typer.Option(
        "--variable-batching",
        help="A worker may leave part of its queue for later. For comparison, with few "
        "--bins and a short --queue-max: routers always take the whole queue.",
    ),
]


@ramsis.command("solve")
def solve_tables(
    scenario: WorkloadPath,
    load: Load = 0.0,
    workers: Workers = 0,
    every_load: EveryLoad = False,
    application: ApplicationName = "",
    reward: Reward = None,
    balancing: Balancing = None,
    bins: Bins = None,
    queue_max: QueueMax = None,
    law: Law = None,
    burst_ms: BurstMs = None,
    slo_ms: SloMs = 0.0,
    variable_batching: VariableBatching = False,
    profiles: Profiles = None,
    as_json: AsJson = False,
) -> None:
    """Solve the table of one load, and say what accuracy and violation rate it promises.

    The scenario, or the serving file, names the variants, the SLO and the backends. Where
    clients differ in SLO (slos_ms) the table is that of one of them, with its part of workers and
    load. With --json the whole table is printed: the variant, and with --variable-batching the
    batch size, for each queue length and slack bin.
    """
    given = LoadOptions(profiles=tuple(profiles or ()))
    read, rate_rps = _scenario(scenario, application, load, given)
    workers = workers or read.backends
    check_number("--workers", workers, low=1)
    if every_load and variable_batching:
        refuse("--every-load", True, "goes without --variable-batching")
    options = _options(
        read,
        reward=reward,
        balancing=balancing,
        bins=bins,
        queue_max=queue_max,
        law=law,
        burst_ms=burst_ms,
    )
    slo_ns, workers, rate_rps = _part(read, options, slo_ms, workers, rate_rps)
    problem, names = worker_problem(read, workers, rate_rps, options, slo_ns)
    if every_load:
        _print_ladder(problem, as_json)
        return
    solution = solve_variable(problem) if variable_batching else solve(problem)
    if as_json:
        print(json.dumps(asdict(_table_of(problem, names, solution))))
        return
    console = Console()
    console.print(
        f"{rate_rps:,.0f} req/s on {workers} workers: expected accuracy at least "
        f"{solution.accuracy:.4f}, violations at most {solution.violation:.4%}"
    )
    console.print(_slack_table(problem, names, solution))


def _part(
    scenario: Scenario, options: RamsisOptions, slo_ms: float, workers: int, rate_rps: float
) -> tuple[int, int, float]:
    """One SLO, and the workers and the load that are its part."""
    slos = slos_of(options, scenario.applications[0].slo_ns)
    known = [slo_ns for slo_ns, _ in slos]
    slo_ns = round(1e6 * slo_ms) or known[0]
    if slo_ns not in known:
        told = ", ".join(f"{each / 1e6:g}" for each in known)
        refuse("--slo-ms", slo_ms, f"must be one of {told}")
    place = known.index(slo_ns)
    own = share_out(workers, [share for _, share in slos])[place]
    if own == 0:
        refuse("--workers", workers, f"leaves none for the SLO of {slo_ns / 1e6:g} ms")
    return slo_ns, own, slos[place][1] * rate_rps


@dataclass(frozen=True, slots=True)
class TableReport:
    """A table and its promises, as --json prints them."""

    load_rps: float
    workers: int
    accuracy: float
    violation: float
    variants: tuple[str, ...]
    slack_ms: tuple[float, ...]
    choice: Sequence[Sequence[int | tuple[int, int]]]
    """By queue length and slack."""


@dataclass(frozen=True, slots=True)
class RungReport:
    """The promises of one load's table."""

    load_rps: float
    accuracy: float
    violation: float


def _table_of(
    problem: WorkerProblem, names: tuple[str, ...], solution: TableSolution | VariableSolution
) -> TableReport:
    return TableReport(
        problem.rate_rps,
        problem.workers,
        solution.accuracy,
        solution.violation,
        names,
        tuple(slack_ns / 1e6 for slack_ns in problem.slack_ns),
        solution.choice,
    )


def _label(names: tuple[str, ...], choice: int | tuple[int, int]) -> str:
    if isinstance(choice, int):
        return names[choice]
    return f"{names[choice[0]]} x {choice[1]}"


def _slack_table(
    problem: WorkerProblem, names: tuple[str, ...], solution: TableSolution | VariableSolution
) -> Table:
    """One row for each queue length: from which slack on each variant runs."""
    table = Table(title="variant by queue length and slack")
    table.add_column("queue", justify="right")
    table.add_column("from slack (ms)")
    rows: Sequence[Sequence[int | tuple[int, int]]] = solution.choice
    for length, row in enumerate(rows, 1):
        changes: list[str] = []
        for slack, choice in enumerate(row):
            if slack == 0 or choice != row[slack - 1]:
                changes.append(f"{problem.slack_ns[slack] / 1e6:.4g}: {_label(names, choice)}")
        table.add_row(str(length), ", ".join(changes))
        if len(changes) == 1 and length > 1:
            break
    return table


def _print_ladder(problem: WorkerProblem, as_json: bool) -> None:
    peak = peak_rps(problem)
    with _spinner() as progress:
        progress.add_task("solving", total=None)
        ladder = solve_grid(problem, LOAD_LOW * peak, peak)
    rungs = [
        RungReport(rung.rate_rps, rung.solution.accuracy, rung.solution.violation)
        for rung in ladder.rungs
    ]
    if as_json:
        tables = [asdict(each) for each in rungs]
        print(json.dumps({"workers": problem.workers, "tables": tables}))
        return
    table = Table(title=f"{len(rungs)} tables for {problem.workers} workers")
    for heading in ("load (req/s)", "accuracy", "violations"):
        table.add_column(heading, justify="right")
    for each in rungs:
        table.add_row(f"{each.load_rps:,.0f}", f"{each.accuracy:.4f}", f"{each.violation:.4%}")
    Console().print(table)


@ramsis.command()
def plan(
    scenario: WorkloadPath,
    accuracy: Annotated[float, typer.Option(help="Minimum accuracy, as a fraction, such as 0.76.")],
    violation: Annotated[
        float, typer.Option(help="Maximum violation rate, as a fraction.")
    ] = 0.001,
    load: Load = 0.0,
    by: Annotated[
        str, typer.Option(help="ramsis: by its promises; central-queue: by simulation; or both.")
    ] = "both",
    workers_max: Annotated[int, typer.Option(help="Largest fleet to consider.")] = 1024,
    cost_per_hour: Annotated[
        float, typer.Option(help="Price of one worker, in any currency.")
    ] = 0.0,
    application: ApplicationName = "",
    reward: Reward = None,
    balancing: Balancing = None,
    bins: Bins = None,
    law: Law = None,
    burst_ms: BurstMs = None,
    arrivals: Arrivals = "",
    profiles: Profiles = None,
    as_json: AsJson = False,
) -> None:
    """How many workers a load needs for an accuracy and a violation rate, and what they cost.

    RAMSIS promises both ahead, for arrivals of its --law; the central queue is simulated for 20 s
    at each number of workers, with the scenario's own arrivals. Each has the options that the
    scenario gives it. Exit code 1 where not even --workers-max are enough.
    """
    check_fraction("--accuracy", accuracy)
    check_fraction("--violation", violation)
    check_number("--cost-per-hour", cost_per_hour)
    check_number("--workers-max", workers_max, low=1)
    if by not in PLANNED:
        refuse("--by", by, f"must be one of {', '.join(PLANNED)}")
    given = LoadOptions(arrivals=arrivals, profiles=tuple(profiles or ()))
    read, rate_rps = _scenario(scenario, application, load, given)
    wish = WorkerGoal(rate_rps, accuracy, violation)
    options = _options(
        read, reward=reward, balancing=balancing, bins=bins, law=law, burst_ms=burst_ms
    )
    tries = {
        "ramsis": promised_fleet(read, wish, options),
        "central-queue": simulated_fleet(read, wish),
    }
    fleets: dict[str, WorkerCount | None] = {}
    with _spinner() as progress:
        task = progress.add_task("planning", total=None)
        for name, attempt in tries.items():
            if by not in (name, "both"):
                continue

            def tell(fleet: WorkerCount, name: str = name) -> None:
                progress.update(task, description=f"{name}: {fleet.workers} workers")

            fleets[name] = fewest_workers(attempt, wish, workers_max, tell)
    _print_plan(fleets, wish, workers_max, cost_per_hour, as_json)
    if any(fleet is None for fleet in fleets.values()):
        raise typer.Exit(1)


def _print_plan(
    fleets: dict[str, WorkerCount | None],
    wish: WorkerGoal,
    workers_max: int,
    cost_per_hour: float,
    as_json: bool,
) -> None:
    if as_json:
        rows = {
            name: None
            if fleet is None
            else {**asdict(fleet), "cost_per_hour": fleet.workers * cost_per_hour}
            for name, fleet in fleets.items()
        }
        print(json.dumps({**asdict(wish), "plans": rows}))
        return
    table = Table(
        title=f"{wish.rate_rps:,.0f} req/s, accuracy from {wish.accuracy:g}, "
        f"violations to {wish.violation:.4%}"
    )
    for heading in ("policy", "workers", "accuracy", "violations", "cost per hour"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for name, fleet in fleets.items():
        if fleet is None:
            table.add_row(name, f"> {workers_max}", "", "", "")
            continue
        cost = f"{fleet.workers * cost_per_hour:,.2f}" if cost_per_hour else ""
        table.add_row(
            name, str(fleet.workers), f"{fleet.accuracy:.4f}", f"{fleet.violation:.4%}", cost
        )
    Console().print(table)


def _spinner() -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=Console(stderr=True), transient=True)
