"""Pipelines under simulated faults: one right answer a query, and nothing that is left of it."""

import pytest

from fermata.fault_simulator.run import run_pipelines
from fermata.router.links.messages import HandedOn
from fermata.router.live.driver import LiveRouter
from fermata.router.live.fleet.peers import LinkPeer

SEEDS = 4
SEARCH = 4


@pytest.mark.parametrize("seed", [*range(SEEDS), 13, 14, 1_000_041])
def test_every_query_has_one_right_answer(seed: int) -> None:
    story = run_pipelines(seed)
    assert not story.broken, story
    assert story.outcomes["served"] > 50


def test_queries_outlive_backends_and_links() -> None:
    story = run_pipelines(100, ("kill", "machine", "drain-backend", "part"))
    assert not story.broken, story


def without_ends(what: object) -> None:
    """The router does not hear that a result makes nothing more."""
    if not isinstance(what, LiveRouter) or what.queries is None:
        return
    hear = what.queries.on_handed_on

    def hear_some(now_ns: int, link: LinkPeer, message: HandedOn) -> bool:
        return message.rid % 16 == 3 or hear(now_ns, link, message)

    what.queries.on_handed_on = hear_some  # type: ignore[method-assign]


def test_a_planted_bug_is_found() -> None:
    assert any(run_pipelines(seed, ("slow",), without_ends).broken for seed in range(SEARCH))


def without_returns(what: object) -> None:
    """The router does not hear that a function has returned."""
    if not isinstance(what, LiveRouter) or what.queries is None:
        return
    hear, queries = what.queries.on_handed_on, what.queries.table.queries

    def hear_some(now_ns: int, link: LinkPeer, message: HandedOn) -> bool:
        query = queries.get(message.rid)
        is_lost = query is not None and bool(query.called) and message.rid % 8 == 3
        return is_lost or hear(now_ns, link, message)

    what.queries.on_handed_on = hear_some  # type: ignore[method-assign]


def test_a_planted_bug_of_functions_is_found() -> None:
    assert any(run_pipelines(seed, ("slow",), without_returns).broken for seed in range(SEARCH))
