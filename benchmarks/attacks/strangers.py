"""Strangers on the ports of links: greetings, poisoned terms, noise and silence."""

import contextlib
import socket

from benchmarks.attacks.attacker import Aim, connect, keep_trying, main
from fermata.router.links.closing import CloseCode
from fermata.router.links.handshake import NONCE_BYTES
from fermata.router.links.messages import PROTOCOL, Goodbye, Hello, Message, Proof, TakesLead
from fermata.router.links.session import encode

TERM = 2**62
HELD_MAX = 500


def words() -> list[bytes]:
    """One frame that once ended a router, and its neighbours."""
    said: list[list[Message]] = [
        [Hello(PROTOCOL, role, 0, TERM, nonce=bytes(NONCE_BYTES)), Proof(bytes(32))]
        for role in ("router", "frontend", "backend", "standby")
    ]
    said += [[TakesLead(TERM)], [Goodbye("this router's term 1 is stale", CloseCode.STALE)]]
    return [encode(each)[0] for each in said] + [b"\xff" * 4096, b"GET / HTTP/1.1\r\n\r\n", b""]


def run(aim: Aim) -> None:
    """Say each to every port of links, and stay."""
    all_ = words()
    held: list[socket.socket] = []

    def attack(count: int) -> None:
        for port in aim.link_ports:
            one = connect(aim, port, count % 3)
            held.append(one)
            with contextlib.suppress(OSError):
                one.send(all_[count % len(all_)])
        while len(held) > HELD_MAX:
            held.pop(0).close()

    keep_trying(aim, attack)
    for each in held:
        each.close()


if __name__ == "__main__":
    main(run, __doc__)
