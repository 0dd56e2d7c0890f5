"""The default policy, live: several variants by load, with tables solved in a process aside."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from served import Server, load, serving, wait_until

pytestmark = pytest.mark.live

INPUT = {"name": "input", "dtype": "UINT8", "shape": [200]}


def application(name: str, **more: Any) -> dict[str, Any]:
    variants = [
        {"name": f"{name}-fast", "model": "emulated", "alpha_ms": 1, "beta_ms": 4, "accuracy": 0.7},
        {"name": f"{name}-slow", "model": "emulated", "alpha_ms": 9, "beta_ms": 9, "accuracy": 0.8},
    ]
    return {"name": name, "slo_ms": 150, "input": INPUT, "variants": variants, **more}


def figures(server: Server) -> dict[str, float]:
    return dict(server.status()["policies"]["free"]["figures"])


def ran(folder: Path) -> list[str]:
    """Variants of all batches so far, in order."""
    lines = [
        line for path in folder.glob("router*.jsonl") for line in path.read_text().splitlines()
    ]
    told = [json.loads(line) for line in lines]
    return [each["variant"] for each in told if each["event"] == "dispatched"]


def test_the_default_chooses_by_load_and_says_where_it_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    config = {
        "applications": [application("free"), application("fixed", serving="fixed-fast")],
        "backend": {"count": 2, "device": "emulated", "cpus": 0.1},
        "logs": {"level": "debug", "folder": str(folder)},
    }
    with serving(tmp_path, config, backends=2) as server:
        quiet = load(server, "free", rate=5, seconds=3)
        wait_until(lambda: "promised_accuracy" in figures(server), 10)
        calm = ran(folder)
        busy = load(server, "free", rate=250, seconds=4)
        promised = figures(server)
        load(server, "fixed", rate=5, seconds=1)
    told = [line for path in folder.glob("router*.jsonl") for line in path.read_text().splitlines()]
    assert any(
        "fixed sets serving, so policy auto serves fixed-fast alone." in each for each in told
    )
    assert quiet["good"] > 0
    assert busy["good"] > 0
    # With both backends free the accurate one serves; 250 req/s are more than it can do.
    assert calm[-1] == "free-slow"
    strained = [each for each in ran(folder)[len(calm) :] if each.startswith("free")]
    assert strained.count("free-fast") > 0
    assert {each for each in ran(folder) if each.startswith("fixed")} == {"fixed-fast"}
    assert promised["table_failures"] == 0
    assert 0.0 < promised["promised_accuracy"] < 0.8
