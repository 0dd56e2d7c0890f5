"""The data of a placement: models, sub-clusters, a plan, and the way from one plan to another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fermata.profiles.profile import Profile

ANY_KIND = ""
"""The accelerator type of a cluster whose backends are all alike."""


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """What placement has to know of one model."""

    name: str
    rate_rps: float
    static_bytes: int
    """Held on every backend of its sub-cluster."""
    dynamic_bytes: int = 0
    """Held while a batch of it runs; one batch runs at a time, so the largest one counts."""
    load_cost: float = 1.0
    """Of loading it on, or unloading it from, a sub-cluster: c of Eqn 11, in any one unit."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """Its run times by accelerator type; empty: it runs on any, at a cost nobody asks for."""
    slo_ns: int = 0

    def runs_on(self, kind: str) -> bool:
        return not self.profiles or kind in self.profiles or ANY_KIND in self.profiles

    def profile_on(self, kind: str) -> Profile | None:
        return self.profiles.get(kind, self.profiles.get(ANY_KIND))


@dataclass(frozen=True, slots=True)
class SubCluster:
    """Backends that all hold the same models, behind one RankThread."""

    name: str
    rate_rps_max: float
    """R_max: what its RankThread can dispatch."""
    memory_bytes: int
    """S_max: what a backend of it can hold."""
    share: float = 1.0
    """Of rate and memory, relative to the others: 2 for accelerators twice as large."""
    kind: str = ANY_KIND
    cluster: str = ""
    """The cluster, with a router of its own, that it is part of."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Place these models on these sub-clusters."""

    models: tuple[PlacedModel, ...]
    sub_clusters: tuple[SubCluster, ...]
    memory_weight: float = 1.0
    """w of Eqn 4. Both deviations are relative to their averages, so that 1 weighs them alike."""
    current: Mapping[str, str] = field(default_factory=dict)
    """Today's sub-cluster of each model; absent where it is new."""
    load_cost_max: float | None = None
    """C_max of Eqn 11; None: any disruption will do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The sub-cluster of each model."""

    home: Mapping[str, str]

    def models_of(self, sub_cluster: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, home in self.home.items() if home == sub_cluster))

    def to_dict(self) -> dict[str, list[str]]:
        """Models by sub-cluster, as plan files have it; sub-clusters without any are left out."""
        placed: dict[str, list[str]] = {}
        for name in sorted(self.home):
            placed.setdefault(self.home[name], []).append(name)
        return dict(sorted(placed.items()))


@dataclass(frozen=True, slots=True)
class Move:
    """One model's way from sub-cluster to sub-cluster; None: it comes, or goes for good."""

    model: str
    source: str | None
    target: str | None
    cost: float


def moves(
    current: Mapping[str, str], home: Mapping[str, str], load_cost: Mapping[str, float]
) -> tuple[Move, ...]:
    """What changes. A move costs a load and an unload (Eqn 11); what is new, or goes, is no
    disruption of anything that runs and costs nothing."""
    changed: list[Move] = []
    for name in sorted({*current, *home}):
        source, target = current.get(name), home.get(name)
        if source != target:
            both = source is not None and target is not None
            cost = 2 * load_cost.get(name, 0.0) if both else 0.0
            changed.append(Move(name, source, target, cost))
    return tuple(changed)


@dataclass(frozen=True, slots=True)
class Stage:
    """Moves made together: every load first, and when all are done, every unload."""

    moves: tuple[Move, ...]
    gap: bool = False
    """There is no room to load first: its model is away until a later stage loads it."""


def stages(problem: Problem, home: Mapping[str, str]) -> tuple[Stage, ...]:
    """An order of moves in which each model is loaded on its new home before it leaves the old.

    While a sub-cluster holds what comes and what goes it needs more memory than either plan; as
    many moves as fit are made at a time. Only where nothing fits must some model be away first.
    """
    models = {model.name: model for model in problem.models}
    costs = {name: model.load_cost for name, model in models.items()}
    held: dict[str, set[str]] = {each.name: set() for each in problem.sub_clusters}
    for name, place in problem.current.items():
        if name in models and place in held:
            held[place].add(name)
    room = {each.name: each.memory_bytes for each in problem.sub_clusters}
    left = sorted(moves(problem.current, home, costs), key=lambda move: -_static(models, move))
    ordered: list[Stage] = []
    while left:
        fitting: list[Move] = []
        for move in left:
            target = move.target
            if target is None or fits(
                [models[name] for name in held[target] | {move.model}], room[target]
            ):
                fitting.append(move)
                if target is not None:
                    held[target].add(move.model)
        gap = not fitting
        left = [move for move in left if move not in fitting]
        if gap:
            # Its load comes in a later stage, once there is room on its new home.
            away = _to_take_away(left)
            fitting = [Move(away.model, away.source, None, 0.0)]
            left.remove(away)
            left.append(Move(away.model, None, away.target, away.cost))
        for move in fitting:
            if move.source in held:
                held[move.source].discard(move.model)
        ordered.append(Stage(tuple(fitting), gap))
    return tuple(ordered)


def _to_take_away(left: Sequence[Move]) -> Move:
    """The smallest that is still somewhere; with all of them away, a legal plan has room."""
    placed = [move for move in left if move.source is not None]
    assert placed, "a plan that holds more than there is room for"
    return placed[-1]


def _static(models: Mapping[str, PlacedModel], move: Move) -> int:
    return models[move.model].static_bytes if move.model in models else 0


def memory_bytes(models: Sequence[PlacedModel]) -> int:
    """What a backend that holds these models needs (Eqn 6)."""
    if not models:
        return 0
    return sum(model.static_bytes for model in models) + max(
        model.dynamic_bytes for model in models
    )


def fits(models: Sequence[PlacedModel], room_bytes: int) -> bool:
    return memory_bytes(models) <= room_bytes
