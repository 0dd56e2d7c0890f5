"""Problems as files, and solutions as `fermata plan` prints them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fermata.foundation.json_types import JsonObject
from fermata.foundation.refusals import check_positive, refuse
from fermata.foundation.units import ms
from fermata.foundation.validation import Fields, fields, read_yaml
from fermata.partitioner.plan import ANY_KIND, PlacedModel, Plan, Problem, SubCluster
from fermata.partitioner.plan_file import by_name, save_json
from fermata.partitioner.solution import PlacementSolution
from fermata.profiles.profile import Profile
from fermata.profiles.reference import find_profile
from fermata.profiles.store import BYTES_PER_MB

PROBLEM_KEYS = (
    "sub_clusters",
    "rate_max_rps",
    "memory_mb",
    "memory_weight",
    "load_cost_max_ms",
    "models",
)
PLACE_KEYS = ("name", "count", "rate_max_rps", "memory_mb", "share", "kind", "cluster")
MODEL_KEYS = (
    "name",
    "rate_rps",
    "static_mb",
    "dynamic_mb",
    "load_ms",
    "slo_ms",
    "profile",
    "profiles",
    "batch_size_max",
    "copies",
)


def load_problem(path: Path | str) -> Problem:
    """The problem in a YAML or JSON file, or a ConfigError in one line."""
    return read_problem(read_yaml(path), Path(path).parent)


def read_problem(data: object, beside: Path | None = None) -> Problem:
    """The problem that these plain values describe; profile files that it names lie `beside`."""
    top = fields("", "problem", data, PROBLEM_KEYS)
    places = _read_places(top)
    models: list[PlacedModel] = []
    for row in top.rows("models", MODEL_KEYS):
        model = _read_model(row, beside)
        copies = row.integer("copies", 1, low=1)
        names = [model.name] if copies == 1 else [f"{model.name}-{n}" for n in range(copies)]
        models += [replace(model, name=name) for name in names]
    _check_names("models", [model.name for model in models])
    cost_max = top.number("load_cost_max_ms") if top.has("load_cost_max_ms") else None
    return Problem(tuple(models), places, top.number("memory_weight", 1), Plan(), cost_max)


def _check_names(field: str, names: list[str]) -> None:
    if not names:
        refuse(field, names, "must hold at least one")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            refuse(field, name, "is there twice; rename one")
        seen.add(name)


def _read_places(top: Fields) -> tuple[SubCluster, ...]:
    given = top.data.get("sub_clusters")
    if not isinstance(given, list):
        count = top.integer("sub_clusters", low=1)
        places = [_read_place(top, top, f"sub-{number}") for number in range(count)]
        return tuple(places)
    places = []
    for row in top.rows("sub_clusters", PLACE_KEYS):
        name, count = row.text("name"), row.integer("count", 1, low=1)
        names = [name] if count == 1 else [f"{name}-{number}" for number in range(count)]
        places += [_read_place(row, top, each) for each in names]
    _check_names("sub_clusters", [place.name for place in places])
    return tuple(places)


def _read_place(row: Fields, top: Fields, name: str) -> SubCluster:
    rate = row.positive("rate_max_rps") or top.positive("rate_max_rps")
    memory_mb = row.positive("memory_mb") or top.positive("memory_mb")
    if rate is None:
        refuse(row.name("rate_max_rps"), None, "is needed; requests per second of a RankThread")
    if memory_mb is None:
        refuse(row.name("memory_mb"), None, "is needed; memory of a backend")
    share = row.number("share", 1) if row is not top else 1.0
    check_positive(row.name("share"), share)
    kind = row.text("kind", ANY_KIND) if row is not top else ANY_KIND
    cluster = row.text("cluster", "") if row is not top else ""
    return SubCluster(name, rate, int(memory_mb * BYTES_PER_MB), share, kind, cluster)


def _read_model(row: Fields, beside: Path | None) -> PlacedModel:
    profiles = _read_profiles(row, beside)
    known = next(iter(profiles.values()), None)
    size = row.integer("batch_size_max", _size(known), low=1) if known else 0
    static = known.static_bytes if known else 0
    dynamic = known.dynamic_bytes_at(size) if known else 0
    if row.has("static_mb"):
        static = int(row.number("static_mb") * BYTES_PER_MB)
    elif known is None:
        refuse(row.name("static_mb"), None, "is needed, or a profile that knows it")
    if row.has("dynamic_mb"):
        dynamic = int(row.number("dynamic_mb") * BYTES_PER_MB)
    load_ms = row.number("load_ms", known.load_ns / 1e6 if known and known.load_ns else 1.0)
    slo_ms = row.positive("slo_ms")
    slo_ns = ms(slo_ms) if slo_ms is not None else (known.slo_ns or 0) if known else 0
    name = row.text("name", known.name if known else None)
    return PlacedModel(name, row.number("rate_rps"), static, dynamic, load_ms, profiles, slo_ns)


def _size(profile: Profile | None) -> int:
    return (profile.batch_size_max if profile else None) or 1


def _read_profiles(row: Fields, beside: Path | None) -> Mapping[str, Profile]:
    if row.has("profile") and row.has("profiles"):
        refuse(row.name("profiles"), row.data["profiles"], "give either profile or profiles")
    if row.has("profile"):
        return {ANY_KIND: find_profile(row.text("profile"), beside, row.name("profile"))}
    named = row.mapping("profiles")
    found: dict[str, Profile] = {}
    for kind, name in named.items():
        if not isinstance(name, str):
            refuse(row.name(f"profiles.{kind}"), name, "must be a profile's name")
        found[kind] = find_profile(name, beside, row.name(f"profiles.{kind}"))
    return found


def solution_dict(problem: Problem, solution: PlacementSolution) -> JsonObject:
    """The object that `fermata plan --json` prints; `load_plan` reads its plan back."""
    names = [each.name for each in problem.sub_clusters]
    return {
        "plan": by_name(solution.plan, names),
        "objective": solution.objective,
        "bound": solution.bound,
        "gap": solution.gap,
        "proven": solution.proven,
        "rate_imbalance": solution.rate_imbalance,
        "memory_imbalance": solution.memory_imbalance,
        "backends": dict(zip(names, solution.backends, strict=True)),
        "moves": [
            {
                "model": move.model,
                "from": None if move.source is None else names[move.source],
                "to": None if move.target is None else names[move.target],
                "cost_ms": move.cost,
            }
            for move in solution.moves
        ],
        "load_cost_ms": solution.cost,
        "seconds": solution.seconds,
        "solver": solution.solver,
    }


def save_plan(path: Path | str, problem: Problem, solution: PlacementSolution) -> None:
    """Write a solution as `fermata plan --json` prints it."""
    save_json(path, solution_dict(problem, solution))
