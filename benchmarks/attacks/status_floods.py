"""Floods of cheap pages: health, descriptions, `/status` and `/metrics`."""

import contextlib
import socket

from benchmarks.attacks.attacker import Aim, keep_trying, main, speak

PATHS = ("/v2/health/ready", "/v2", "/v2/openapi.json", "/v2/models/none")
PAGES = ("/status", "/metrics")
AT_ONCE = 50


def run(aim: Aim) -> None:
    """Ask for them on many connections, one request behind the other."""

    def ask(one: socket.socket, path: str) -> None:
        one.sendall(f"GET {path} HTTP/1.1\r\nhost: here\r\n\r\n".encode() * 4)
        with contextlib.suppress(TimeoutError):
            one.settimeout(0.5)
            one.recv(1 << 16)

    def attack(count: int) -> None:
        held = [speak(aim, aim.http_port, count % 3) for _ in range(AT_ONCE)]
        pages = [speak(aim, aim.status_port, count % 3)] if aim.status_port else []
        for number, one in enumerate(held):
            ask(one, PATHS[number % len(PATHS)])
        for one in pages:
            ask(one, PAGES[count % len(PAGES)])
        for one in held + pages:
            one.close()

    keep_trying(aim, attack)


if __name__ == "__main__":
    main(run, __doc__)
