"""One of two live routers is killed under load, beside an application that lives with both."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.figures import Figure, run
from benchmarks.ledger_load import finished, start
from benchmarks.live_server import Running, fermata

KILLS, QUICK_KILLS = 20, 1
KILLED_RPS = 40
LOAD_S, KILL_AFTER_S, BACK_S = 8.0, 3.0, 60.0


def application(name: str) -> dict[str, Any]:
    variant = {"name": f"{name}-1", "model": "emulated", "alpha_ms": 2, "beta_ms": 10}
    return {
        "name": name,
        "slo_ms": 1000,
        "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
        "variants": [variant],
    }


NAMES = ("own", "other", "both")


def kill_once(server: Running) -> dict[str, int]:
    """Bad requests of each application around the end of the first one's router."""
    routers = server.status()["routers"]
    (victim,) = (each for each in routers if "own" in each["applications"])
    loads = {name: start(server.address, name, KILLED_RPS, LOAD_S) for name in NAMES}
    before = {name: _received(server, name) for name in NAMES}
    end_s = time.monotonic() + BACK_S
    while any(_received(server, name) == before[name] for name in NAMES):
        assert time.monotonic() < end_s, "no load came"
        time.sleep(0.1)
    time.sleep(KILL_AFTER_S)
    os.kill(victim["pid"], signal.SIGKILL)
    found: dict[str, int] = {}
    for name, process in loads.items():
        told = finished(process)
        found[name] = told["requests"] - told["good"]
    print(f"bad: {found}", file=sys.stderr)
    return found


def _received(server: Running, name: str) -> int:
    return int(server.status()["applications"].get(name, {}).get("requests", 0))


def _whole(server: Running) -> None:
    """Wait until both routers have their backends, with all models."""
    end_s = time.monotonic() + BACK_S
    while time.monotonic() < end_s:
        try:
            status = server.status()
            models = [len(each["models"]) for each in status["backends"].values()]
            if len(status["routers"]) == 2 and models == [2, 2]:
                return
        except (OSError, KeyError, ValueError):
            pass
        time.sleep(0.5)
    raise AssertionError(f"the server is not whole within {BACK_S:g} s")


def measure(quick: bool) -> Iterator[Figure]:
    times = QUICK_KILLS if quick else KILLS
    for standby in (False, True):
        found: list[dict[str, int]] = []
        with fermata(
            applications=[application(name) for name in NAMES],
            sub_clusters={"count": 2, "spread": ["both"]},
            router={"standby": standby},
        ) as server:
            for _ in range(times):
                _whole(server)
                found.append(kill_once(server))
        title = f"one of two routers killed {times} times" + ", with standby" * standby
        for name, what in (
            ("other", "of the other sub-cluster"),
            ("both", "of an application that lives in both"),
            ("own", "of its own"),
        ):
            goal = float("inf") if name == "own" and not standby else 0.0
            bad = sum(each[name] for each in found)
            yield Figure(f"{title}: bad requests {what}", bad, "", goal, at_most=True)


if __name__ == "__main__":
    run("The end of one of two routers", measure)
