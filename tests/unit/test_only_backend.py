"""The longest time without a good answer, as a client's ledger has it."""

import numpy as np

from benchmarks.only_backend import longest_gap_s
from fermata.foundation.units import ms


def gap_s(*requests: tuple[int, int, str]) -> float:
    """Requests: (sent, answered, outcome), in ms."""
    sent, answered, outcome = zip(*requests, strict=True)
    sent_ns = np.array([ms(each) for each in sent])
    return longest_gap_s(
        {
            "scheduled_ns": sent_ns,
            "sent_ns": sent_ns,
            "answered_ns": np.array([ms(each) for each in answered]),
            "outcome": np.array(outcome),
        }
    )


def test_requests_that_are_refused_wait_for_a_good_answer_too() -> None:
    refused = [(at, at + 5, "UNAVAILABLE") for at in range(20, 300, 10)]
    assert gap_s((0, 10, "OK"), *refused, (310, 330, "OK")) == 0.31


def test_nobody_waits_while_nothing_is_sent() -> None:
    assert gap_s((0, 10, "OK"), (2000, 2030, "OK")) == 0.03


def test_a_server_that_does_not_come_back_is_missed_to_the_end() -> None:
    assert gap_s((0, 10, "OK"), (20, 25, "UNAVAILABLE"), (900, 920, "UNAVAILABLE")) == 0.9
