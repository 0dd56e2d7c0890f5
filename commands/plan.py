"""`fermata plan`: which models live together."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fermata.commands.files.placement import is_problem, problem_of
from fermata.commands.files.workload import (
    FanOuts,
    LoadOptions,
    Profiles,
    RateRps,
    load_workload,
)
from fermata.foundation.errors import ConfigError
from fermata.foundation.json_types import JsonObject
from fermata.foundation.refusals import check_fraction, check_positive, refuse
from fermata.foundation.validation import read_yaml
from fermata.partitioner.plan import ANY_KIND, Problem, memory_bytes
from fermata.partitioner.plan_file import load_plan
from fermata.partitioner.problem_file import load_problem, solution_dict
from fermata.partitioner.solution import PlacementSolution
from fermata.profiles.store import BYTES_PER_MB

ProblemPath = Annotated[
    Path,
    typer.Argument(
        metavar="PROBLEM", help="Placement problem (docs/scale.md), serving file or scenario."
    ),
]
CurrentPath = Annotated[
    Path | None,
    typer.Option("--current", metavar="PLAN", help="Today's plan, as --json prints it."),
]
TimeLimit = Annotated[float, typer.Option(help="Seconds to search; the best so far is printed.")]
Solver = Annotated[str, typer.Option(help="highs or cbc; the best one installed unless given.")]
Seed = Annotated[
    int, typer.Option(help="Seed for the search; the same seed searches the same way.")
]
Utilisation = Annotated[
    float, typer.Option(help="How busy backends may be, where their number is asked.")
]
SubClusters = Annotated[
    int, typer.Option(help="Sub-clusters; 0: those of the file's epochs, or one.", min=0)
]
MemoryMb = Annotated[
    float, typer.Option(help="Memory of a backend in MB; 0: the file's, or any.", min=0)
]
Accuracy = Annotated[
    float | None,
    typer.Option(
        help="Mean accuracy to count backends for, where policies choose variants by load; "
        "the file's autoscaler.accuracy unless given."
    ),
]
Size = Annotated[
    bool,
    typer.Option(
        "--size", help="Find the fewest sub-clusters that do, and the backends of all of them."
    ),
]
RateMaxRps = Annotated[
    float,
    typer.Option(
        help="Requests per second that one router carries; 0: the file's, or 100,000.", min=0
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
APPLICATION_KEYS = frozenset(("applications", "zoo"))
MOVES_SHOWN = 20


def plan(
    problem: ProblemPath,
    current: CurrentPath = None,
    time_limit_s: TimeLimit = 10.0,
    solver: Solver = "",
    seed: Seed = 0,
    utilisation: Utilisation = 1.0,
    rate_rps: RateRps = None,
    sub_clusters: SubClusters = 0,
    memory_mb: MemoryMb = 0.0,
    accuracy: Accuracy = None,
    profiles: Profiles = None,
    fan_outs: FanOuts = None,
    size: Size = False,
    rate_max_rps: RateMaxRps = 0.0,
    as_json: AsJson = False,
) -> None:
    """Place models on sub-clusters: rate and memory balanced, limits kept, few models moved.

    Every backend of a sub-cluster holds all models of it. With a current plan, load_cost_max_ms
    of the problem bounds the load times of what moves. Where sub-clusters belong to several
    clusters, models go to clusters first. Of a serving file or a scenario the applications are
    placed, with --rate-rps shared among them by weight. With --size the number of sub-clusters is
    found too: each has a router of its own, and a model above the rate of one is split.
    """
    try:
        from fermata.partitioner.kind_sizing import sized_by_kind
        from fermata.partitioner.solver.two_level import solve_two_level
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'fermata[plan]'") from None
    _check_limits(time_limit_s, utilisation, accuracy)
    load = LoadOptions(rate_rps, profiles=tuple(profiles or ()), fan_outs=tuple(fan_outs or ()))
    loaded = _load(problem, load, sub_clusters, memory_mb, accuracy)
    if rate_max_rps:
        loaded = _with_rate_max(loaded, rate_max_rps)
    if size:
        _refuse_given(sub_clusters, current)
    if current is not None:
        names = [each.name for each in loaded.sub_clusters]
        loaded = replace(loaded, current=load_plan(current, names))
    with Console(stderr=True).status("searching") as status:

        def tell(by: str, objective: float) -> None:
            status.update(f"{by}: {objective:.3g}")

        def search(asked: Problem, limit_s: float) -> PlacementSolution:
            return solve_two_level(asked, limit_s, seed, solver, utilisation, tell)

        if size:
            loaded, found = sized_by_kind(loaded, search, time_limit_s, utilisation)
        else:
            found = search(loaded, time_limit_s)
    needs = Needs.of(loaded, found) if size else None
    if as_json:
        sizes = {} if needs is None else needs.to_dict()
        print(json.dumps({**solution_dict(loaded, found), **sizes}))
    else:
        _print(loaded, found, needs)


def _check_limits(time_limit_s: float, utilisation: float, accuracy: float | None) -> None:
    check_positive("time_limit_s", time_limit_s)
    check_fraction("utilisation", utilisation)
    check_positive("utilisation", utilisation)
    if accuracy is not None:
        check_fraction("--accuracy", accuracy)


def _refuse_given(sub_clusters: int, current: Path | None) -> None:
    for option, given in (("--sub-clusters", sub_clusters), ("--current", current)):
        if given:
            refuse(option, given, "is what --size finds anew; leave one out")


def _load(
    path: Path, load: LoadOptions, sub_clusters: int, memory_mb: float, accuracy: float | None
) -> Problem:
    """The problem in a file, or that of a scenario or a serving file under a load."""
    data = read_yaml(path)
    if isinstance(data, dict) and APPLICATION_KEYS & set(data) and not is_problem(data):
        scenario = load_workload(path, load, needs_rate=False)
        if scenario.epochs is None and not memory_mb:
            # The fleet's memory limits placement too; `epochs` has counted it in already.
            memory_mb = data.get("backend", {}).get("memory_mb") or 0.0
        return problem_of(scenario, sub_clusters, memory_mb, accuracy)
    for option, given in (
        ("--rate-rps", load.rate_rps),
        ("--sub-clusters", sub_clusters),
        ("--memory-mb", memory_mb),
        ("--accuracy", accuracy),
        ("--profile", load.profiles),
    ):
        if given:
            refuse(option, given, f"{path} is a placement problem, and says it itself")
    return load_problem(path)


def _with_rate_max(problem: Problem, rate_rps_max: float) -> Problem:
    places = tuple(replace(each, rate_rps_max=rate_rps_max) for each in problem.sub_clusters)
    return replace(problem, sub_clusters=places)


@dataclass(frozen=True, slots=True)
class Needs:
    """Backends and routers that a load needs, as `--size` finds them."""

    sub_clusters: int
    backends_all: int | None
    """None where run times are not known."""
    backends_of_kinds: Mapping[str, int]
    """Empty where there are no kinds, or some run time is not known."""

    @staticmethod
    def of(problem: Problem, found: PlacementSolution) -> "Needs":
        known = [each for each in found.backends if each is not None]
        whole = sum(known) if len(known) == len(found.backends) else None
        return Needs(len(problem.sub_clusters), whole, _of_kinds(problem, found))

    def to_dict(self) -> JsonObject:
        """The keys of `--json`, the last one where there are kinds."""
        told = asdict(self)
        if not self.backends_of_kinds:
            del told["backends_of_kinds"]
        return told


def _of_kinds(problem: Problem, found: PlacementSolution) -> dict[str, int]:
    counts: dict[str, int] = {}
    for place, count in zip(problem.sub_clusters, found.backends, strict=True):
        if count is None or place.kind == ANY_KIND:
            return {}
        counts[place.kind] = counts.get(place.kind, 0) + count
    return counts


def _print(problem: Problem, found: PlacementSolution, needs: Needs | None) -> None:
    console = Console()
    console.print(_places(problem, found))
    if needs is not None:
        backends = "unknown" if needs.backends_all is None else f"{needs.backends_all:,}"
        routers = f"{needs.sub_clusters:,} sub-clusters with a router each"
        console.print(f"needs {routers}; backends: {backends}")
        if kinds := needs.backends_of_kinds:
            console.print(", ".join(f"{kind}: {count:,}" for kind, count in kinds.items()))
    console.print(_figures(problem, found))
    if found.moves:
        console.print(_moves(problem, found))


def _places(problem: Problem, found: PlacementSolution) -> Table:
    table = Table(title="plan")
    for heading in ("sub-cluster", "models", "req/s", "memory MB", "of", "backends"):
        table.add_column(heading, justify="left" if heading == "sub-cluster" else "right")
    models = {model.name: model for model in problem.models}
    for index, place in enumerate(problem.sub_clusters):
        needed = found.backends[index]
        held = [models[name] for name in found.plan.models_of(index)]
        table.add_row(
            place.name,
            f"{len(held):,}",
            f"{sum(model.rate_rps for model in held):,.0f}",
            f"{memory_bytes(held) / BYTES_PER_MB:,.0f}",
            f"{place.memory_bytes / BYTES_PER_MB:,.0f}",
            "-" if needed is None else f"{needed:,}",
        )
    return table


def _figures(problem: Problem, found: PlacementSolution) -> Table:
    table = Table(show_header=False)
    rows = [
        ("imbalance of rate", f"{100 * found.rate_imbalance:.4g} %"),
        ("imbalance of memory", f"{100 * found.memory_imbalance:.4g} %"),
        ("objective", f"{found.objective:.4g}"),
        ("bound", f"{found.bound:.4g}"),
        ("gap (absolute)", f"{found.gap:.4g}{', optimal' if found.proven else ''}"),
        ("found by", f"{found.solver} and search in {found.seconds:.1f} s"),
    ]
    if problem.current.home:
        limit = problem.load_cost_max
        allowed = "" if limit is None else f" of {limit:,.1f} allowed"
        rows.append(("moves", f"{len(found.moves):,}, {found.cost:,.1f} ms of loading{allowed}"))
    for row in rows:
        table.add_row(*row)
    return table


def _moves(problem: Problem, found: PlacementSolution) -> Table:
    more = max(0, len(found.moves) - MOVES_SHOWN)
    table = Table(title="moves", caption=f"and {more} more" if more else None)
    for heading in ("model", "from", "to", "cost ms"):
        table.add_column(heading, justify="right" if heading == "cost ms" else "left")
    for move in found.moves[:MOVES_SHOWN]:
        ends = [
            "-" if each is None else problem.sub_clusters[each].name
            for each in (move.source, move.target)
        ]
        table.add_row(move.model, *ends, f"{move.cost:,.1f}")
    return table
