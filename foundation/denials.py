"""A record of callers that have proven nothing, which no flood of them can fill."""

import time
from collections.abc import Callable

from fermata.foundation.logs import LOG, fields

EVERY_NS = 60 * 10**9
ADDRESSES_MAX = 32
"""Addresses that have a line of their own in that time."""
OTHERS = "others"


class DeniedLogins:
    """Logs the first denied login of an address at once, and how many there were a minute later,
    with the next one that is denied."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock = clock
        self.since_ns = clock()
        self.counts: dict[str, int] = {}
        """Denied logins by address, since then."""

    def note(self, address: str, reason: str) -> None:
        """Record one; the reason holds nothing that the caller has sent."""
        now_ns = self.clock()
        if now_ns - self.since_ns >= EVERY_NS:
            for each, count in self.counts.items():
                if count > 1 or each == OTHERS:
                    LOG.warning("logins denied", extra=fields(address=each, count=count))
            self.counts.clear()
            self.since_ns = now_ns
        if address not in self.counts and len(self.counts) >= ADDRESSES_MAX:
            address = OTHERS
        count = self.counts[address] = self.counts.get(address, 0) + 1
        if count == 1 and address != OTHERS:
            LOG.warning("login denied", extra=fields(address=address, reason=reason))
