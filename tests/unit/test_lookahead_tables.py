"""Tables of the policy that looks ahead, where solving them takes time as it does live."""

import itertools

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.engine import Engine
from fermata.router.core.events import Compute, Dispatch, Request
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.lookahead.selection import Conditions, TableSelection
from fermata.router.policies.lookahead.source import LookaheadQueue

SLO_NS, STEP_NS, SOLVE_NS = ms(50), ms(1), ms(200)
GAP_NS = ms(10)
FAST, GOOD = 0, 1
SIZES = range(1, 9)
VARIANTS = (
    VariantSpec("fast", tuple(ms(1.0 + 0.1 * size) for size in SIZES), accuracy=0.6),
    VariantSpec("good", tuple(ms(3.0 + 1.0 * size) for size in SIZES), accuracy=0.8),
)


class SlowSolver:
    """An engine with one backend, whose tables come a while after they were asked for."""

    def __init__(self) -> None:
        application = ApplicationSpec("task", SLO_NS, VARIANTS)
        built = assemble(RouterConfig((application,), "lookahead", {}, lead_ns=0))
        self.engine: Engine = built.engine
        self.engine.on_backend_up(0, 0, owner=built.ownership.take(0))
        source = self.engine.sources[0]
        assert isinstance(source, LookaheadQueue)
        self.source = source
        self.solved: list[tuple[int, Compute]] = []
        self.ends: list[tuple[int, int]] = []
        self.variants: list[int] = []

    def play(self, from_ns: int, until_ns: int, gap_ns: int, moving: bool) -> None:
        """Evenly spaced requests. A lead that moves does so before every table is solved."""
        ids = itertools.count(from_ns)
        for now_ns in range(from_ns, until_ns, STEP_NS):
            if moving and now_ns % ms(100) == 0:
                self.engine.leads[0].start_ns += ms(0.06)
            self._end(now_ns)
            if now_ns % gap_ns == 0:
                self.engine.on_request(now_ns, Request(next(ids), 0, now_ns, now_ns + SLO_NS))
            self.engine.on_time(now_ns)
            self._carry_out(now_ns)

    def _end(self, now_ns: int) -> None:
        while self.ends and self.ends[0][0] <= now_ns:
            _, run_ns = self.ends.pop(0)
            self.engine.on_done(now_ns, 0, run_ns)
        while self.solved and self.solved[0][0] <= now_ns:
            _, asked = self.solved.pop(0)
            self.engine.on_computed(now_ns, asked.application, asked.work())

    def _carry_out(self, now_ns: int) -> None:
        for effect in self.engine.take_effects():
            if isinstance(effect, Compute):
                self.solved.append((now_ns + SOLVE_NS, effect))
            elif isinstance(effect, Dispatch):
                begin_ns = max([now_ns, *(end for end, _ in self.ends)])
                run_ns = effect.batch.expect_ns
                self.ends.append((begin_ns + run_ns, run_ns))
                self.variants += [effect.batch.variant] * len(effect.batch.requests)


@pytest.mark.parametrize("moving", [False, True])
def test_a_table_is_used_though_leads_move_while_it_is_solved(moving: bool) -> None:
    solver = SlowSolver()
    solver.play(0, SECOND, GAP_NS, moving)
    solver.variants.clear()
    solver.play(SECOND, 2 * SECOND, GAP_NS, moving)
    table = solver.source.table
    assert table is not None
    assert table.problem.gap_ns == pytest.approx(GAP_NS, rel=0.2)
    assert set(solver.variants) == {GOOD}


def test_an_older_table_does_not_replace_a_nearer_one() -> None:
    solver = SlowSolver()
    solver.play(0, SECOND, GAP_NS, moving=False)
    source, selection = solver.source, solver.source.selection
    used, table = selection.used, source.table
    assert used is not None
    assert table is not None
    assert selection.fits(used)
    # Another table was asked for at a load that has gone since, as have the leads it was for.
    far = Conditions((used.marks[0] + 20.0, *used.marks[1:]), ("other",))
    selection.asked = far
    solver.engine.leads[0].start_ns += ms(1)
    source.on_computed(SECOND, table)
    assert selection.used != far
    # With nothing in use, any is better than none.
    assert TableSelection(source.look.moved).is_better(far, used)
