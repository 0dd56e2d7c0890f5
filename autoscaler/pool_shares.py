"""Backends of each pool, out of all that a sub-cluster has: the router hands them out by shares."""

from collections.abc import Sequence

from fermata.router.policies.ownership import Ownership


def handed_out(shares: Sequence[float], count: int) -> list[int]:
    """Backends of each pool when so many come up, one after the other."""
    ownership = Ownership(dict(enumerate(shares)))
    for backend in range(count):
        ownership.take(backend)
    return [ownership.held[pool] for pool in range(len(shares))]


def covering(shares: Sequence[float], needs: Sequence[int], maximum: int) -> int:
    """The least number of backends that gives every pool what it needs, up to the maximum."""
    if len(needs) == 1:
        return needs[0]
    ownership = Ownership(dict(enumerate(shares)))
    count = 0
    while count < maximum and any(ownership.held[pool] < need for pool, need in enumerate(needs)):
        ownership.take(count)
        count += 1
    return count
