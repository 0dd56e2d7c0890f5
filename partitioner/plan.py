"""The data of a placement: models, sub-clusters, a plan, and the way from one plan to another.

A sub-cluster is its index in `Problem.sub_clusters` everywhere inside; its name is for files and
for people (`fermata.partitioner.plan_file`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fermata.partitioner.accuracy_mix import RatedProfile
from fermata.profiles.profile import Profile

ANY_KIND = ""
"""The accelerator type of a cluster whose backends are all alike."""
CLUSTER_SIZE_MAX = 20
"""Sub-clusters that models are placed on at one level; above it they go to clusters first."""


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model as placement sees it."""

    name: str
    rate_rps: float
    static_bytes: int
    """Held on every backend of its sub-cluster."""
    dynamic_bytes: int = 0
    """Held while a batch of it runs; one batch runs at a time, so the largest one counts."""
    load_cost: float = 1.0
    """Cost of loading it on, or unloading it from, a sub-cluster: c of Eqn 11, in any one unit."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """Its run times by accelerator type; empty: it runs on any type, in unknown time."""
    slo_ns: int = 0
    choices: tuple[RatedProfile, ...] = ()
    """The variants among which its policy chooses by load; empty: it does not."""
    accuracy: float | None = None
    """Mean accuracy to hold by that choice; None: any."""
    batch_size: int = 0
    """It runs in batches of this size, since it shares an SLO with other stages of a pipeline; 0:
    in the largest that its SLO allows."""
    utilisation: float = 1.0
    """How busy backends may be with such batches on average."""

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
    """Share of rate and memory, relative to the others: 2 for accelerators twice as large. Where
    backends are balanced: how many it may have."""
    kind: str = ANY_KIND
    cluster: str = ""
    """The cluster, with a router of its own, that it is part of."""


def in_clusters(places: Sequence[SubCluster]) -> tuple[SubCluster, ...]:
    """The same sub-clusters in clusters of one kind each, where they are too many for one level."""
    if len(places) <= CLUSTER_SIZE_MAX:
        return tuple(replace(each, cluster="") for each in places)
    seen = Counter[str]()
    found: list[SubCluster] = []
    for each in places:
        number = str(seen[each.kind] // CLUSTER_SIZE_MAX)
        found.append(replace(each, cluster=f"{each.kind}-{number}" if each.kind else number))
        seen[each.kind] += 1
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Move:
    """The way of one model between two sub-clusters.

    Without a source the model comes; without a target it leaves, for a while or for good.
    """

    model: str
    source: int | None
    target: int | None
    cost: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The sub-cluster of each model, by its index. Plain data: it travels to routers as it is."""

    home: Mapping[str, int] = field(default_factory=dict)

    def models_of(self, sub_cluster: int) -> tuple[str, ...]:
        return tuple(sorted(name for name, home in self.home.items() if home == sub_cluster))

    def after(self, moves: Iterable[Move]) -> "Plan":
        """The plan once these models are at their targets."""
        arrived = {move.model: move.target for move in moves if move.target is not None}
        return Plan({**self.home, **arrived})

    def away(self, other: "Plan") -> tuple[str, ...]:
        """Models of this plan that the other one has elsewhere, or not at all."""
        return tuple(sorted(name for name, at in self.home.items() if other.home.get(name) != at))


@dataclass(frozen=True, slots=True)
class Problem:
    """The question of which of these models go to which of these sub-clusters."""

    models: tuple[PlacedModel, ...]
    sub_clusters: tuple[SubCluster, ...]
    memory_weight: float = 1.0
    """w of Eqn 4. Both deviations are relative to their averages, so that 1 weighs them alike."""
    current: Plan = field(default_factory=Plan)
    """Today's plan; a new model is absent from it."""
    load_cost_max: float | None = None
    """C_max of Eqn 11; None: any disruption will do."""
    slack: float = 0.0
    """Share of its target, of load and of memory each, by which a sub-cluster may be further off
    than in the best plan, to move less."""
    by_backends: bool = False
    """Balance the backends that models need, by kind, in place of their rates. Every profile and
    SLO must be known. The rate of a RankThread is limited all the same."""


def restricted(problem: Problem, among: Sequence[int]) -> Problem:
    """The same question for some of the sub-clusters, by their places in the new one. Its models
    live there, or nowhere yet."""
    place = {number: at for at, number in enumerate(among)}
    home = {name: place[at] for name, at in problem.current.home.items() if at in place}
    return replace(
        problem,
        sub_clusters=tuple(problem.sub_clusters[each] for each in among),
        current=Plan(home),
    )


def moves(current: Plan, plan: Plan, load_cost: Mapping[str, float]) -> tuple[Move, ...]:
    """The changes from one plan to another.

    A move costs a load and an unload (Eqn 11). A model that is new, or leaves for good, disrupts
    nothing that runs, and costs nothing.
    """
    changed: list[Move] = []
    for name in sorted({*current.home, *plan.home}):
        source, target = current.home.get(name), plan.home.get(name)
        if source != target:
            both = source is not None and target is not None
            cost = 2 * load_cost.get(name, 0.0) if both else 0.0
            changed.append(Move(name, source, target, cost))
    return tuple(changed)


@dataclass(frozen=True, slots=True)
class MoveStage:
    """Moves made together: every load first, and when all are done, every unload."""

    moves: tuple[Move, ...]
    gap: bool = False
    """There is no room to load first: its model is away until a later stage loads it."""


def stages(problem: Problem, plan: Plan) -> tuple[MoveStage, ...]:
    """An order of moves in which each model is loaded on its new home before it leaves the old.

    While a sub-cluster holds what comes and what goes it needs more memory than either plan. As
    many moves as fit are made at a time. Only where nothing fits must some model be away first.
    """
    models = {model.name: model for model in problem.models}
    costs = {name: model.load_cost for name, model in models.items()}
    room = [each.memory_bytes for each in problem.sub_clusters]
    held: list[set[str]] = [set() for _ in room]
    for name, home in problem.current.home.items():
        if name in models:
            held[home].add(name)
    left = sorted(moves(problem.current, plan, costs), key=lambda move: -_static(models, move))
    ordered: list[MoveStage] = []
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
            if move.source is not None:
                held[move.source].discard(move.model)
        ordered.append(MoveStage(tuple(fitting), gap))
    return tuple(ordered)


def _to_take_away(left: Sequence[Move]) -> Move:
    """The smallest that is still somewhere; with all of them away, a legal plan has room."""
    placed = [move for move in left if move.source is not None]
    assert placed, "a plan that holds more than there is room for"
    return placed[-1]


def _static(models: Mapping[str, PlacedModel], move: Move) -> int:
    return models[move.model].static_bytes if move.model in models else 0


def memory_bytes(models: Sequence[PlacedModel]) -> int:
    """Memory that a backend with these models needs (Eqn 6)."""
    if not models:
        return 0
    return sum(model.static_bytes for model in models) + max(
        model.dynamic_bytes for model in models
    )


def fits(models: Sequence[PlacedModel], room_bytes: int) -> bool:
    return memory_bytes(models) <= room_bytes
