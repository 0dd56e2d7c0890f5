"""Ports for servers that are started to be measured or tested."""

from fermata.foundation import ports

given: set[int] = set()


def free_port() -> int:
    """One that nobody holds, and that this process has not given out before."""
    port = ports.free_port(given=given)
    given.add(port)
    return port
