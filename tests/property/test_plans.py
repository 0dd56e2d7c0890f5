"""What every plan keeps, whatever the problem."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fermata.foundation.errors import ConfigError
from fermata.partitioner.plan import PlacedModel, Plan, Problem, SubCluster, memory_bytes, stages
from fermata.partitioner.solver.balance import Balance
from fermata.partitioner.solver.search import greedy
from fermata.partitioner.solver.solve import solve

sizes = st.integers(0, 100)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rows = draw(st.lists(st.tuples(sizes, sizes, sizes, st.integers(1, 9)), max_size=14))
    models = tuple(
        PlacedModel(f"m{number}", rate, static, dynamic, cost)
        for number, (rate, static, dynamic, cost) in enumerate(rows)
    )
    count = draw(st.integers(1, 4))
    places = tuple(
        SubCluster(
            f"s{number}",
            draw(st.integers(50, 800)),
            draw(st.integers(100, 800)),
            draw(st.sampled_from((1.0, 2.0))),
        )
        for number in range(count)
    )
    home = {model.name: draw(st.integers(0, count - 1)) for model in models if draw(st.booleans())}
    cost_max = draw(st.none() | st.integers(0, 60))
    return Problem(models, places, 1.0, Plan(home), cost_max)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_plans_keep_every_limit_and_are_no_worse_than_their_start(problem: Problem) -> None:
    try:
        found = solve(problem, 0.3)
    except ConfigError:
        return
    balance = Balance(problem)
    start = greedy(balance)
    if balance.feasible(start):
        assert found.objective <= balance.objective(start) + 1e-12
    placed = set(problem.current.home) == {model.name for model in problem.models}
    if placed and balance.feasible(balance.current):
        assert found.objective <= balance.objective(balance.current) + 1e-12
    assert found.bound <= found.objective + 1e-6
    assert set(found.plan.home) == {model.name for model in problem.models}
    for index, place in enumerate(problem.sub_clusters):
        held = [model for model in problem.models if found.plan.home[model.name] == index]
        assert memory_bytes(held) <= place.memory_bytes * (1 + 1e-6)
        assert sum(model.rate_rps for model in held) <= place.rate_rps_max * (1 + 1e-6)
    if problem.load_cost_max is not None:
        assert sum(move.cost for move in found.moves) <= problem.load_cost_max + 1e-6


@settings(max_examples=40, deadline=None)
@given(problems())
def test_stages_end_at_the_plan_and_never_overfill(problem: Problem) -> None:
    free = replace(problem, load_cost_max=None)
    try:
        found = solve(free, 0.3)
    except ConfigError:
        return
    models = {model.name: model for model in problem.models}
    held = [set[str]() for _ in problem.sub_clusters]
    room = [place.memory_bytes for place in problem.sub_clusters]
    for name, place in problem.current.home.items():
        held[place].add(name)
    legal = all(memory_bytes([models[n] for n in names]) <= room[p] for p, names in enumerate(held))
    for stage in stages(free, found.plan):
        for move in stage.moves:
            if stage.gap and move.source is not None:
                held[move.source].discard(move.model)
            if move.target is not None:
                held[move.target].add(move.model)
        if legal:
            for names, fits in zip(held, room, strict=True):
                assert memory_bytes([models[n] for n in names]) <= fits
        for move in stage.moves:
            if move.source is not None:
                held[move.source].discard(move.model)
    placed = {name: place for place, names in enumerate(held) for name in names}
    assert Plan(placed) == found.plan
