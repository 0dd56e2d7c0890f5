"""Two sub-clusters on backends with room for half of the models, before and after a failover."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from served import Server, load, serving, wait_until

pytestmark = pytest.mark.live
NAMES = ("cats", "dogs", "birds", "fish")
# A model of 91 MB each; three of them do not fit.
CONFIG: dict[str, Any] = {
    "applications": [
        {
            "name": name,
            "slo_ms": 1000,
            "variants": [
                {
                    "name": f"{name}-1",
                    "model": "emulated",
                    "profile": "h200-eager/resnet101",
                    "batch_size_max": 8,
                }
            ],
        }
        for name in NAMES
    ],
    "frontend": {"processes": 1},
    "backend": {"count": 2, "device": "emulated", "memory_mb": 240, "cpus": 0.1},
    "epochs": {"sub_clusters": 2, "solve_s": 1},
}


def held(server: Server) -> list[str]:
    """Models that are loaded, on any backend."""
    return sorted(model for models in by_backend(server) for model in models)


def by_backend(server: Server) -> list[list[str]]:
    return [each["models"] for each in server.status()["backends"].values()]


def all_served(server: Server) -> None:
    for name in NAMES:
        told = load(server, name, rate=20, seconds=1)
        assert told["lost"] == 0, name
        # The machine that runs tests is small and busy; a model that is nowhere serves none.
        assert told["good"] > 0.5 * told["requests"], (name, told)


def test_every_model_is_served_from_the_start_and_after_a_failover(tmp_path: Path) -> None:
    with serving(tmp_path, CONFIG, backends=2) as server:
        wait_until(lambda: len(held(server)) == 4, 30)
        assert sorted(map(len, by_backend(server))) == [2, 2]
        all_served(server)
        before = server.status()
        os.kill(before["pid"], signal.SIGKILL)
        wait_until(lambda: server.status()["term"] > before["term"], 30)
        wait_until(lambda: len(held(server)) == 4, 30)
        all_served(server)


def test_the_same_holds_where_each_sub_cluster_has_a_router(tmp_path: Path) -> None:
    given = CONFIG | {"sub_clusters": {"count": 2}, "epochs": {"solve_s": 1}}
    with serving(tmp_path, given, backends=2) as server:
        wait_until(lambda: len(held(server)) == 4, 30)
        assert sorted(map(len, by_backend(server))) == [2, 2]
        # A backend refuses what is above its budget, and nobody has asked one for that.
        assert server.status()["failures"] == 0
        all_served(server)
        before = {each["sub_cluster"]: each for each in server.status()["routers"]}
        for each in before.values():
            os.kill(each["pid"], signal.SIGKILL)
        wait_until(
            lambda: all(
                each["term"] > before[each["sub_cluster"]]["term"]
                for each in server.status()["routers"]
            ),
            30,
        )
        wait_until(lambda: len(server.status()["routers"]) == 2 and len(held(server)) == 4, 30)
        assert sorted(map(len, by_backend(server))) == [2, 2]
        all_served(server)
