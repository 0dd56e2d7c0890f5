"""Real processes are killed under load; the client's ledger is the judge."""

import signal

import pytest

pytest.importorskip("ray")
from benchmarks.kills import CONFIG, recovered, strike
from benchmarks.live_server import fermata

pytestmark = [pytest.mark.live, pytest.mark.long]
UNNOTICED = ("control plane", "Serve controller")


def test_nobody_is_left_without_an_answer_whatever_dies() -> None:
    with fermata(**CONFIG) as server:
        for role in ("backend", "router", *UNNOTICED):
            verdict = strike(server, role, signal.SIGKILL)
            assert verdict.lost == 0, role
            assert verdict.duplicates == 0, role
            assert verdict.late_answers == 0, role
            assert verdict.gap_s <= 2.5, role
            recovered(server)
