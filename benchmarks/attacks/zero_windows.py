"""Health checks and requests whose answers the client gives no room to."""

import time

from benchmarks.attacks.attacker import Aim, Http2, keep_trying, main

CALLS = 900


def run(aim: Aim) -> None:
    """Open calls whose answers can never leave, on ever more connections."""
    held: list[Http2] = []

    def attack(count: int) -> None:
        one = Http2(aim, count % 2, window=0)
        held.append(one)
        for _ in range(CALLS):
            one.begin("ServerLive", end=True)
        time.sleep(0.05)

    keep_trying(aim, attack)
    for each in held:
        each.close()


if __name__ == "__main__":
    main(run, __doc__)
