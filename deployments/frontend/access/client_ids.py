"""Numbers by which the router and the counters know clients and tenants."""

from functools import lru_cache
from hashlib import blake2b

CLIENT_BITS = 63


def client_number(name: str, tenant: str) -> int:
    """The number of a tenant's client, given as a number or a name; 0 for none.

    Clients of two tenants have two numbers, even under the same name.
    """
    if name in ("", "0"):
        return 0
    if not tenant and name.isdecimal() and len(name) < 19:
        return int(name)
    digest = blake2b(name.encode(), digest_size=8, key=blake2b(tenant.encode()).digest())
    return int.from_bytes(digest.digest(), "big") >> 1 or 1


@lru_cache(maxsize=4096)
def tenant_number(name: str) -> int:
    """The number of a tenant; 0 where none are configured."""
    return client_number(name, name) if name else 0
