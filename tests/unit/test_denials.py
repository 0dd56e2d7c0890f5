"""Denied logins are recorded, whoever they come from and however many there are."""

import logging

import pytest

from fermata.foundation.denials import ADDRESSES_MAX, EVERY_NS, DeniedLogins


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    found = [{"said": each.getMessage(), **each.__dict__["fields"]} for each in caplog.records]
    caplog.clear()
    return found


def test_the_first_of_an_address_is_told_at_once_and_the_others_as_a_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    denied = DeniedLogins(clock)
    with caplog.at_level(logging.WARNING, "fermata"):
        for _ in range(1000):
            denied.note("10.0.0.1", "the token is unknown")
        denied.note("10.0.0.2", "no token")
        assert told(caplog) == [
            {"said": "login denied", "address": "10.0.0.1", "reason": "the token is unknown"},
            {"said": "login denied", "address": "10.0.0.2", "reason": "no token"},
        ]
        clock.now_ns = EVERY_NS
        denied.note("10.0.0.2", "no token")
        assert told(caplog) == [
            {"said": "logins denied", "address": "10.0.0.1", "count": 1000},
            {"said": "login denied", "address": "10.0.0.2", "reason": "no token"},
        ]


def test_a_flood_of_addresses_fills_neither_memory_nor_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    denied = DeniedLogins(clock)
    with caplog.at_level(logging.WARNING, "fermata"):
        for index in range(100_000):
            denied.note(f"address {index}", "no token")
        assert len(denied.counts) == ADDRESSES_MAX + 1
        assert len(told(caplog)) == ADDRESSES_MAX
        clock.now_ns = EVERY_NS
        denied.note("address 1", "no token")
        (others, _) = told(caplog)
        assert others["count"] == 100_000 - ADDRESSES_MAX
