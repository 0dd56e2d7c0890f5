"""Backends of two kinds in one deployment, live: each is planned with its own run times."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from served import Server, load, serving, wait_until

pytestmark = pytest.mark.live

VARIANT = {"name": "v", "model": "emulated", "alpha_ms": 2, "beta_ms": 20}


def backends_of(server: Server) -> list[dict[str, Any]]:
    return list(server.status()["backends"].values())


def test_two_kinds_of_backends_serve_one_application(tmp_path: Path) -> None:
    application = {
        "name": "a",
        "slo_ms": 250,
        "input": {"name": "input", "dtype": "UINT8", "shape": [200]},
        "variants": [VARIANT],
    }
    folder = tmp_path / "logs"
    config = {
        "applications": [application],
        "backend": {"device": "emulated", "cpus": 0.1},
        "backends": [{"count": 1}, {"count": 1, "slower": 4}],
        "logs": {"level": "debug", "folder": str(folder)},
    }
    with serving(tmp_path, config, backends=2) as server:
        kinds = {each["kind"]: number for number, each in server.status()["backends"].items()}
        assert len(kinds) == 2
        assert "emulated x 4" in kinds
        # 250 ms let batches of 100 run on the fast one, and of 20 on the slow one.
        found = load(server, "a", rate=300, seconds=5)
        numbers = {each: int(kinds[each]) for each in kinds}
        wait_until(lambda: ran_on(folder) >= set(numbers.values()), 5)
        factors = {kind: server.status()["backends"][at]["factor"] for kind, at in kinds.items()}
    assert found["bad_rate"] < 0.2
    # Planned with its own run times from the first batch on, a slow one has none to catch up with.
    assert factors["emulated x 4"] < 2


@pytest.mark.long
def test_each_router_has_backends_of_both_kinds(tmp_path: Path) -> None:
    names = ("a", "b")
    config = {
        "applications": [
            {
                "name": name,
                "slo_ms": 1000,
                "input": {"name": "input", "dtype": "UINT8", "shape": [200]},
                "variants": [{**VARIANT, "name": f"{name}-1"}],
            }
            for name in names
        ],
        "frontend": {"processes": 1},
        "backend": {"device": "emulated", "cpus": 0.1},
        "backends": [{"count": 2}, {"count": 2, "slower": 4}],
        "sub_clusters": {"count": 2},
    }
    with serving(tmp_path, config, backends=4) as server:
        wait_until(lambda: all(each["models"] for each in backends_of(server)), 30)
        there = sorted((each["sub_cluster"], each["kind"]) for each in backends_of(server))
        assert there == [(number, kind) for number in range(2) for kind in ("cpu", "emulated x 4")]
        for name in names:
            told = load(server, name, rate=20, seconds=1)
            assert told["lost"] == 0
            assert told["good"] > 0.5 * told["requests"], (name, told)


def ran_on(folder: Path) -> set[int]:
    """Backends that have been given batches so far."""
    lines = [
        line for path in folder.glob("router*.jsonl") for line in path.read_text().splitlines()
    ]
    told = [json.loads(line) for line in lines]
    return {each["backend"] for each in told if each["event"] == "dispatched"}
