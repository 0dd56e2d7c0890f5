"""A running server scales through Serve and moves models; the client's ledger is the judge."""

import pytest

pytest.importorskip("ray")
from benchmarks.autoscale_live import goodput, lost, move_models, scale_both_ways

pytestmark = [pytest.mark.live, pytest.mark.long]


def test_backends_follow_the_load_up_and_down() -> None:
    seen, ledger, failed = scale_both_ways()
    assert max(each.backends for each in seen) >= 2
    assert seen[-1].backends == 1
    assert lost(ledger) == 0
    assert not failed
    # The load is low again, and what was released is not missed.
    assert goodput(ledger, 50, 70) > 0.8


def test_models_move_and_no_request_is_lost() -> None:
    seen, ledger, failed, _ = move_models()
    assert seen[-1].moved >= 1
    assert seen[-1].home != seen[0].home
    assert lost(ledger) == 0
    assert not failed
