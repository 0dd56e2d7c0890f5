"""Ports for servers that are started to be measured or tested."""

import random
import socket
from contextlib import suppress

PORTS = range(20_000, 32_000)
"""Above those of Ray's workers, below those that a system gives to whoever wants just any: a port
is looked for some seconds before it is bound, and others look for theirs meanwhile."""
given: set[int] = set()


def free_port() -> int:
    chance = random.SystemRandom()
    while True:
        port = chance.choice(PORTS)
        if port in given:
            continue
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            given.add(port)
            return port
