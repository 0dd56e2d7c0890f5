"""Real processes are killed under load; the client's ledger is the judge."""

import signal

import pytest

pytest.importorskip("ray")
from benchmarks.kills import BOTH, CONFIG, LEADS, recovered, strike
from benchmarks.live_server import fermata

pytestmark = [pytest.mark.live, pytest.mark.long]
UNNOTICED = ("control plane", "Serve controller")


def test_nobody_is_left_without_an_answer_whatever_dies() -> None:
    with fermata(**CONFIG) as server:
        for role in ("backend", "router", *UNNOTICED):
            verdict = strike(server, role, signal.SIGKILL)
            assert verdict.lost == 0, role
            assert verdict.twice == 0, role
            assert verdict.cut == 0, role
            assert verdict.late_answers == 0, role
            assert verdict.gap_s <= 2.5, role
            recovered(server)


def test_a_router_with_a_standby_is_hardly_missed() -> None:
    with fermata(**CONFIG, router={"standby": True}) as server:
        recovered(server, standby=True)
        verdict = strike(server, LEADS, signal.SIGKILL)
        assert verdict.lost == 0
        assert verdict.twice == 0
        # The machine that tests run on may be slow itself.
        assert verdict.gap_s <= 0.5
        recovered(server, standby=True)


def test_a_frontend_takes_only_its_own_streams_with_it() -> None:
    with fermata(**CONFIG, frontend={"processes": 2}) as server:
        for sign in BOTH:
            recovered(server, frontends=2)
            verdict = strike(server, "frontend", sign)
            assert verdict.lost == 0, sign
            assert verdict.twice == 0, sign
            assert verdict.strays == 0, sign


def test_nobody_misses_a_cluster_state_that_is_away() -> None:
    with fermata(**CONFIG) as server:
        verdict = strike(server, "GCS", signal.SIGSTOP)
        assert verdict.lost == 0
        assert verdict.late_answers == 0
        assert verdict.gap_s <= 0.5
        recovered(server)
