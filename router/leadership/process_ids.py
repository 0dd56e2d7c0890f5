"""Numbers of frontends and backends: short, since every request carries one, and never shared."""

import hashlib
from collections.abc import Callable

NUMBER_BITS = 20
"""Above those of a request's own counter (`fermata.router.links.messages.RID_BITS`)."""


def claim_process_id(name: str, claim: Callable[[int], str], bits: int = NUMBER_BITS) -> int:
    """A number for the process of this name, the same whenever it asks.

    `claim` writes the name down as the owner of a number, unless that has one, and returns whose
    it is. A digest tells where to begin, so that hardly any process asks twice.
    """
    digest = hashlib.blake2s(name.encode(), digest_size=4).digest()
    first = int.from_bytes(digest) >> (32 - bits)
    numbers = ((first + step) % (1 << bits) for step in range(1 << bits))
    found = next((number for number in numbers if claim(number) == name), None)
    assert found is not None, f"all {1 << bits} numbers are taken"
    return found
