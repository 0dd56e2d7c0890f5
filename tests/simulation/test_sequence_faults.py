"""Sequences under simulated faults: order, state, and losses that are told once."""

import pytest

from fermata.fault_simulator.run import run_sequences
from fermata.router.core.events import Request, SequenceStep
from fermata.router.core.sessions.table import ITS_TURN, WAITS
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.sequences import SequenceQueues

SEEDS = 4
SEARCH = 4


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_step_runs_twice_or_on_another_state(seed: int) -> None:
    story = run_sequences(seed)
    assert not story.broken, story
    assert story.outcomes["served"] > 100


def test_backends_that_die_and_drain_tell_their_sequences() -> None:
    story = run_sequences(100, ("kill", "machine", "drain-backend", "part"))
    assert not story.broken, story


def without_turns(what: object) -> None:
    """Steps do not wait for those before them."""
    if not isinstance(what, LiveRouter):
        return
    (source,) = [each for each in what.engine.sources if isinstance(each, SequenceQueues)]
    table, enter = source.sessions, source.sessions.enter

    def at_once(now_ns: int, step: SequenceStep, item: Request) -> str:
        verdict = enter(now_ns, step, item)
        if verdict != WAITS:
            return verdict
        table.sessions[step.key].waiting.pop()
        return ITS_TURN

    table.enter = at_once  # type: ignore[method-assign]


def test_a_planted_bug_is_found() -> None:
    assert any(run_sequences(seed, ("slow",), without_turns).broken for seed in range(SEARCH))
