"""A new version that turns out bad, on trial under load: it goes, and nobody is lost."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from served import Server, load, serving, wait_until

pytestmark = [pytest.mark.live, pytest.mark.long]
BROKEN = """
calls = 0


def load():
    def run(batch):
        global calls
        calls += 1
        if calls > 30:
            raise RuntimeError("the weights are of another model")
        return batch

    return run
"""
"""Well while it is warmed up, and for its first few batches."""


def config() -> dict[str, Any]:
    common = {"name": "m", "slo_ms": 100, "input": {"shape": [4]}}
    old = {"name": "m-1", "model": "emulated", "alpha_ms": 1, "beta_ms": 2}
    new = {"name": "m-2", "model": "broken_model:load", "alpha_ms": 1, "beta_ms": 2}
    trial = {"share": 0.3, "bad_rate_max": 0.1, "requests_min": 20}
    return {
        "applications": [
            {**common, "version": 1, "variants": [old]},
            {**common, "version": 2, "canary": trial, "variants": [{**new, "batch_size_max": 4}]},
        ],
        "backend": {"count": 1, "device": "emulated", "cpus": 0.1},
    }


def test_a_bad_version_is_withdrawn_and_nobody_is_lost(tmp_path: Path) -> None:
    (tmp_path / "broken_model.py").write_text(BROKEN)
    with serving(tmp_path, config(), backends=1) as server:
        sent = load(server, "m", rate=60, seconds=6)
        assert sent["lost"] == sent["duplicates"] == 0
        wait_until(lambda: "m@2" in server.status()["absent"], 10)
        assert "answers were bad" in server.status()["absent"]["m@2"]
        before = answered(server)
        again = load(server, "m", rate=60, seconds=2)
        assert again["lost"] == 0
        assert again["refused"].get("INTERNAL", 0) == 0
        wait_until(lambda: answered(server)["m@1"] >= before["m@1"] + again["requests"], 10)
        assert answered(server)["m@2"] == before["m@2"]


def answered(server: Server) -> dict[str, int]:
    told = server.status()["applications"]
    return {name: sum(told[name]["answered"].values()) for name in ("m@1", "m@2")}
