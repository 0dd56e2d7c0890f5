"""Pipelines with two sub-clusters: stages live together, move together, and outlive others."""

import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from served import Server, load, serving, wait_until
from test_live_sub_clusters import home_of, models, routers

pytestmark = pytest.mark.live


def application(name: str, profile: str = "h200-eager/mobilenet_v2") -> dict[str, Any]:
    return {
        "name": name,
        "slo_ms": 2000,
        "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
        "variants": [
            {"name": f"{name}-1", "model": "emulated", "profile": profile, "batch_size_max": 8}
        ],
    }


def pipeline(name: str, *applications: str) -> dict[str, Any]:
    first, *others = applications
    stages = [{"application": each, "transform": "input"} for each in others]
    return {"name": name, "slo_ms": 2000, "stages": [{"application": first}, *stages]}


PLACED: dict[str, Any] = {
    "applications": [application(name) for name in ("detect", "classify", "faces")],
    "pipelines": [pipeline("objects", "detect", "classify")],
    "frontend": {"processes": 1},
    "backend": {"count": 2, "device": "emulated", "cpus": 0.1},
    "sub_clusters": {"count": 2},
}


def held(server: Server) -> list[list[str]]:
    return [names for _, names in models(server)]


def good(server: Server, name: str) -> int:
    """Answers in time of a pipeline, or an application."""
    told = server.status()
    return int((told["pipelines"] | told["applications"])[name]["answered"].get("good", 0))


@pytest.mark.long
def test_queries_are_all_good_while_another_router_dies(tmp_path: Path) -> None:
    with serving(tmp_path, PLACED, backends=2) as server:
        home, other = home_of(server, "objects"), home_of(server, "faces")
        assert home_of(server, "detect") == home_of(server, "classify") == home != other
        wait_until(lambda: sorted(held(server)) == [["classify-1", "detect-1"], ["faces-1"]], 30)
        wait_until(lambda: all(each["address"] for each in routers(server).values()), 30)
        before = routers(server)
        with ThreadPoolExecutor() as threads:
            names = ("objects", "faces", "detect")
            loads = {name: threads.submit(load, server, name, 20.0, 8.0) for name in names}
            wait_until(lambda: good(server, "objects") > 20, 150)
            os.kill(before[other]["pid"], signal.SIGKILL)
            told = {name: each.result() for name, each in loads.items()}
        assert all(each["lost"] == 0 for each in told.values()), told
        for name in ("objects", "detect"):
            assert told[name]["good"] == told[name]["requests"], told[name]
        wait_until(lambda: routers(server)[other]["term"] > before[other]["term"], 30)
        assert routers(server)[home]["term"] == before[home]["term"]
        wait_until(lambda: sorted(held(server)) == [["classify-1", "detect-1"], ["faces-1"]], 30)
        with ThreadPoolExecutor() as threads:
            # Queries of its own router wait for the next one, or end by their deadlines.
            given = threads.submit(load, server, "objects", 20.0, 6.0)
            known = good(server, "objects")
            wait_until(lambda: good(server, "objects") > known + 20, 60)
            os.kill(before[home]["pid"], signal.SIGKILL)
            assert given.result()["lost"] == 0
        wait_until(lambda: routers(server)[home]["term"] > before[home]["term"], 30)
        for name in names:
            found = load(server, name, rate=20, seconds=1)
            assert found["good"] == found["requests"], (name, found)


MOVING: dict[str, Any] = {
    "applications": [
        *(application(name) for name in ("detect", "classify", "find", "read")),
        application("large", "h200-eager/resnet152"),
    ],
    "pipelines": [pipeline("objects", "detect", "classify"), pipeline("plates", "find", "read")],
    "frontend": {"processes": 1},
    "backend": {"count": 2, "device": "emulated", "cpus": 0.1},
    "sub_clusters": {"count": 2},
    "epochs": {"every_s": 3, "solve_s": 1, "move_s": 20, "memory_weight": 0},
}


def test_a_pipeline_moves_under_load_and_nobody_notices(tmp_path: Path) -> None:
    with serving(tmp_path, MOVING, backends=2) as server:
        wait_until(lambda: sum(map(len, held(server))) == 5, 30)
        homes = {name: home_of(server, name) for name in ("objects", "plates", "large")}
        assert homes["objects"] != homes["plates"]
        hot, cold = sorted(("objects", "plates"), key=lambda each: homes[each] != homes["large"])
        # A query is two requests: rates are even once the hot pipeline lives with the other. It
        # comes last: until then no move helps, and from then on this one alone.
        rates = {"large": 30.0, cold: 3.0, hot: 12.0}
        with ThreadPoolExecutor() as threads:

            def begin(*names: str) -> list[Future[dict[str, Any]]]:
                begun = [threads.submit(load, server, name, rates[name], 30.0) for name in names]
                wait_until(lambda: all(good(server, name) > 10 for name in names), 60)
                return begun

            loads = [*begin("large", cold), *begin(hot)]
            wait_until(lambda: home_of(server, hot) == home_of(server, cold) == homes[cold], 60)
            told = [each.result() for each in loads]
        assert home_of(server, "detect") == home_of(server, "classify")
        assert home_of(server, "find") == home_of(server, "read")
        assert server.status()["scaling"]["moved"] >= 1
        # The old home has unloaded what has left it.
        wait_until(lambda: sum(map(len, held(server))) == 5, 30)
        for each in told:
            assert each["lost"] == 0, told
            assert each["good"] == each["requests"], told
