"""Thousands of unary calls at once, whose answers are read and forgotten."""

import time

from benchmarks.attacks.attacker import Aim, Http2, keep_trying, main, message

CALLS = 1000
CONNECTIONS = 4
PAUSE_S = 1.0


def run(aim: Aim) -> None:
    """Four thousand calls a second, all of them in its first moment."""
    open_: dict[int, Http2] = {}

    def attack(count: int) -> None:
        for number in range(CONNECTIONS):
            one = open_.pop(number, None) or Http2(aim, number)
            for _ in range(CALLS):
                one.data(one.begin("ModelInfer"), message(b""), end=True)
            # One that was cut meanwhile is not kept.
            open_[number] = one
        time.sleep(PAUSE_S)

    keep_trying(aim, attack)
    for each in open_.values():
        each.close()


if __name__ == "__main__":
    main(run, __doc__)
