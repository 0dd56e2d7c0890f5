"""Connections to every port that say nothing, or a byte at a time."""

import contextlib
import socket
import time

from benchmarks.attacks.attacker import Aim, connect, keep_trying, main

AT_ONCE = 200
HELD_MAX = 4000


def run(aim: Aim) -> None:
    """Open connections of three addresses to all ports, and trickle on them."""
    held: list[socket.socket] = []
    ports = [aim.grpc_port, aim.http_port, *aim.link_ports]

    def attack(count: int) -> None:
        for number in range(AT_ONCE):
            if len(held) < HELD_MAX:
                held.append(connect(aim, ports[number % len(ports)], count % 3))
        for each in held:
            with contextlib.suppress(OSError):
                each.send(b"P", socket.MSG_DONTWAIT)
        time.sleep(0.2)

    keep_trying(aim, attack)
    for each in held:
        each.close()


if __name__ == "__main__":
    main(run, __doc__)
