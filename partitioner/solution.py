"""A plan with its figures: how good it is, what it costs to get there, what it needs."""

from dataclasses import dataclass

from fermata.partitioner.backends import backends_needed
from fermata.partitioner.plan import Move, Plan, moves
from fermata.partitioner.solver.balance import Balance, Homes


@dataclass(frozen=True, slots=True)
class PlacementSolution:
    """A plan, how good it is, and how good it could be at best."""

    plan: Plan
    objective: float
    """Eqn 4 with relative deviations."""
    bound: float
    """No plan has a smaller objective."""
    proven: bool
    """It is optimal."""
    start_objective: float
    """Objective of the better of greedy start and current plan; infinite where both are illegal."""
    rate_imbalance: float
    """(max - min) / avg."""
    memory_imbalance: float
    moves: tuple[Move, ...]
    cost: float
    backends: tuple[int | None, ...]
    """Needed by each sub-cluster (Eqns 2 and 3)."""
    seconds: float
    solver: str

    @property
    def gap(self) -> float:
        """Absolute: the bound is near 0, so that a relative gap would mean nothing."""
        return max(0.0, self.objective - self.bound)


def describe(
    balance: Balance,
    homes: Homes,
    bound: float,
    proven: bool,
    start_objective: float,
    utilisation: float,
    seconds: float,
    solver: str,
) -> PlacementSolution:
    """The assignment as a plan, with its figures."""
    problem = balance.problem
    plan = balance.plan(homes)
    models = {model.name: model for model in problem.models}
    load_cost = {name: model.load_cost for name, model in models.items()}
    rate_imbalance, memory_imbalance = balance.imbalance(homes)
    return PlacementSolution(
        plan=plan,
        objective=balance.objective(homes),
        bound=bound,
        proven=proven,
        start_objective=start_objective,
        rate_imbalance=rate_imbalance,
        memory_imbalance=memory_imbalance,
        moves=moves(problem.current, plan, load_cost) if problem.current.home else (),
        cost=balance.cost(homes),
        backends=tuple(
            backends_needed(
                [models[name] for name in plan.models_of(index)], place.kind, utilisation
            )
            for index, place in enumerate(problem.sub_clusters)
        ),
        seconds=seconds,
        solver=solver,
    )
