"""The programme that plans are judged by: its bound is one, and its optimum is reached."""

import random

import pytest

pytest.importorskip("highspy")

from benchmarks.jellyfish_milp import Programme, optimum
from fermata.foundation.units import ms
from fermata.router.policies.jellyfish.decision import Decider, SearchEffort
from fermata.router.policies.jellyfish.problem import make_client, make_zoo

# PuLP warns of its own next version.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ZOO = make_zoo((0.5, 0.8), [[ms(10), ms(15), ms(20)], [ms(20), ms(35), ms(50)]])
CLIENTS = [make_client(ZOO, number, 20 + number, [ms(90), ms(100)]) for number in range(6)]


def test_bound_is_no_less_than_the_optimum() -> None:
    best = optimum(ZOO, CLIENTS, 2, 20.0)
    assert best.proven
    plan = Decider(ZOO, SearchEffort(), 4, random.Random(0)).decide(CLIENTS, 2)
    assert plan.served == best.served
    assert plan.value(ZOO) == pytest.approx(best.value)
    programme = Programme(ZOO, CLIENTS, 2, apart=False)
    programme.problem.setObjective(programme.value)
    assert programme._run(20.0, 1e-7)
    # Solved to the end, the bound is the optimum of what it was asked for, which is O2 alone.
    assert programme._bound() == pytest.approx(programme.value.value())
    assert programme._bound() >= best.value
