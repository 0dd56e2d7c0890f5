"""Two sub-clusters with a router and backends each: one router dies, the other serves on."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from served import Server, load, serving, wait_until

from fermata.router.leadership.started_ahead import idle_processes

pytestmark = pytest.mark.live
NAMES = ("cats", "dogs", "both")
CONFIG: dict[str, Any] = {
    "applications": [
        {
            "name": name,
            "slo_ms": 2000,
            "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
            "variants": [
                {
                    "name": f"{name}-1",
                    "model": "emulated",
                    "alpha_ms": 2,
                    "beta_ms": 10,
                    "batch_size_max": 16,
                }
            ],
        }
        for name in NAMES
    ],
    "frontend": {"processes": 1},
    "backend": {"count": 3, "device": "emulated", "cpus": 0.1},
    "sub_clusters": {"count": 2, "spread": ["both"]},
}


def routers(server: Server) -> dict[int, dict[str, Any]]:
    return {each["sub_cluster"]: each for each in server.status()["routers"]}


def home_of(server: Server, application: str) -> int:
    (found,) = (at for at, each in routers(server).items() if application in each["applications"])
    return found


def models(server: Server) -> list[tuple[int, list[str]]]:
    """(sub-cluster, models) of each backend."""
    told = server.status()["backends"].values()
    return sorted((each["sub_cluster"], sorted(each["models"])) for each in told)


def test_a_router_that_dies_is_noticed_by_its_own_sub_cluster_alone(tmp_path: Path) -> None:
    with serving(tmp_path, CONFIG, backends=3) as server:
        cats, dogs = home_of(server, "cats"), home_of(server, "dogs")
        assert {cats, dogs} == {0, 1}
        own = {cats: ["both-1", "cats-1"], dogs: ["both-1", "dogs-1"]}
        wait_until(lambda: models(server) == sorted([(0, own[0]), (0, own[0]), (1, own[1])]), 30)
        # The directory follows the first look at its routers.
        wait_until(lambda: all(each["address"] for each in routers(server).values()), 30)
        before = routers(server)
        with ThreadPoolExecutor() as threads:
            loads = {name: threads.submit(load, server, name, 20.0, 8.0) for name in NAMES}
            wait_until(
                lambda: all(
                    each["requests"] > 20 for each in server.status()["applications"].values()
                ),
                150,
            )
            wait_until(lambda: len(idle_processes()) >= len(before), 60)
            ahead = idle_processes()
            os.kill(before[cats]["pid"], signal.SIGKILL)
            told = {name: each.result() for name, each in loads.items()}
        assert all(each["lost"] == 0 for each in told.values()), told
        # All of it is good where the router lived on, and where another one serves it too.
        for name in ("dogs", "both"):
            assert told[name]["good"] == told[name]["requests"], told[name]
        wait_until(lambda: routers(server)[cats]["term"] > before[cats]["term"], 30)
        assert routers(server)[cats]["pid"] in ahead, "its process had been started before"
        wait_until(lambda: models(server) == sorted([(0, own[0]), (0, own[0]), (1, own[1])]), 30)
        assert routers(server)[dogs] == before[dogs] | {
            "applications": routers(server)[dogs]["applications"]
        }
        for name in NAMES:
            found = load(server, name, rate=20, seconds=1)
            assert found["good"] == found["requests"], (name, found)


MOVING_NAMES = ("cats", "dogs", "birds", "fish")
# A model of 91 MB each: a backend has room for three of the four.
MOVING: dict[str, Any] = {
    "applications": [
        {
            "name": name,
            "slo_ms": 2000,
            "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
            "variants": [
                {
                    "name": f"{name}-1",
                    "model": "emulated",
                    "profile": "h200-eager/resnet101",
                    "batch_size_max": 8,
                }
            ],
        }
        for name in MOVING_NAMES
    ],
    "frontend": {"processes": 1},
    "backend": {"count": 2, "device": "emulated", "memory_mb": 350, "cpus": 0.1},
    "sub_clusters": {"count": 2},
    "epochs": {"every_s": 3, "solve_s": 1, "move_s": 20},
}


def test_an_application_moves_under_load_and_nobody_notices(tmp_path: Path) -> None:
    with serving(tmp_path, MOVING, backends=2) as server:
        wait_until(lambda: sum(len(held) for _, held in models(server)) == 4, 30)
        assert [len(held) for _, held in models(server)] == [2, 2]
        homes = {name: home_of(server, name) for name in MOVING_NAMES}
        hot = [name for name, home in homes.items() if home == 0]
        with ThreadPoolExecutor() as threads:
            rates = {name: 30.0 if name in hot else 4.0 for name in MOVING_NAMES}
            loads = [threads.submit(load, server, name, rates[name], 14.0) for name in rates]
            # Apart, and the old home has unloaded what has left it.
            wait_until(
                lambda: (
                    len({home_of(server, name) for name in hot}) == 2
                    and sum(len(held) for _, held in models(server)) == 4
                ),
                60,
            )
            told = [each.result() for each in loads]
        assert server.status()["scaling"]["moved"] >= 1
        for each in told:
            assert each["lost"] == 0, told
            assert each["good"] == each["requests"], told


SCALED: dict[str, Any] = {
    "applications": [
        {
            "name": name,
            "slo_ms": 2000,
            "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
            "variants": [
                {
                    "name": f"{name}-1",
                    "model": "emulated",
                    "alpha_ms": 5,
                    "beta_ms": 80,
                    "batch_size_max": 4,
                }
            ],
        }
        for name in ("cats", "dogs")
    ],
    "frontend": {"processes": 1},
    "backend": {"count": 2, "device": "emulated", "cpus": 0.1},
    "sub_clusters": {"count": 2},
    "autoscaler": {"minimum": 2, "maximum": 3, "window_s": 2, "startup_s": 5},
}


@pytest.mark.long
def test_a_sub_cluster_grows_by_its_own_load(tmp_path: Path) -> None:
    with serving(tmp_path, SCALED, backends=2) as server:
        wait_until(lambda: len(models(server)) == 2 and all(held for _, held in models(server)), 30)
        home = home_of(server, "dogs")
        assert [at for at, _ in models(server)] == [0, 1]
        with ThreadPoolExecutor() as threads:
            # One backend carries 40 requests a second.
            given = threads.submit(load, server, "dogs", 60.0, 10.0)
            more = [(home, ["dogs-1"]), (home, ["dogs-1"]), (1 - home, ["cats-1"])]
            wait_until(lambda: models(server) == sorted(more), 90)
            assert given.result()["lost"] == 0


@pytest.mark.long
def test_a_second_router_opens_once_the_load_needs_it(tmp_path: Path) -> None:
    changes = {
        "applications": CONFIG["applications"][:2],
        "backend": CONFIG["backend"] | {"count": 2},
        "sub_clusters": {"count": "auto", "count_max": 2},
        "epochs": {"every_s": 8, "move_s": 6, "rate_max_rps": 30},
        "autoscaler": {"minimum": 2, "maximum": 6, "window_s": 3},
    }
    with serving(tmp_path, CONFIG | changes, backends=2) as server:
        assert [home_of(server, name) for name in ("cats", "dogs")] == [0, 0]
        with ThreadPoolExecutor() as threads:
            loads = [threads.submit(load, server, name, 20.0, 60.0) for name in ("cats", "dogs")]
            wait_until(lambda: home_of(server, "cats") != home_of(server, "dogs"), 60)
            told = [each.result() for each in loads]
        for each in told:
            assert each["lost"] == 0, each
            assert each["good"] > 0.98 * each["requests"], each
