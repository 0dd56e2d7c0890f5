"""Bursts on the digits family, served live: routed per request, and by a policy per slot."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")
from served import Server, load, serving

from router.core.units import SECOND, ms
from router.policies.rl.checkpoint import Checkpoint, save_checkpoint
from router.policies.rl.network import Network
from router.policies.rl.observation import Scales, width

pytestmark = pytest.mark.live

SLO_MS = 250


def half_and_half(path: Path) -> Path:
    """A policy that knows one thing: a heavy and a light instance get half of the requests each."""
    scales = Scales(buffer=15, slo_ns=ms(SLO_MS))
    inputs = width(2, scales)
    network = Network((np.zeros((inputs, 2)),), (np.zeros(2),))
    high = np.full(inputs, 1e9)
    save_checkpoint(Checkpoint(network, (0, 1), scales, SECOND, np.zeros(inputs), high), path)
    return path


def application(name: str, policy: str, options: dict[str, Any]) -> dict[str, Any]:
    variants = [
        {"name": f"{name}-{size}", "model": f"digits:{size}", "accuracy": accuracy}
        for size, accuracy in (("xl", 0.99), ("nano", 0.92))
    ]
    return {
        "name": name,
        "slo_ms": SLO_MS,
        "input": {"name": "input", "dtype": "FP32", "shape": [64]},
        "policy": policy,
        "policy_options": {"mix": "1/1", **options},
        "variants": variants,
    }


@contextmanager
def serving_digits(folder: Path, policy: str, options: dict[str, Any]) -> Iterator[Server]:
    config = {
        "name": "fermata",
        "applications": [application("digits", policy, options)],
        "backend": {"count": 2, "device": "cpu", "cpus": 0.5},
    }
    with serving(folder, config, backends=2) as one:
        yield one


def answered_by(server: Server) -> dict[str, int]:
    """Requests that each variant has run."""
    return {
        each["name"]: sum(int(size) * count for size, count in each["batch_sizes"].items())
        for each in server.status()["variants"]
    }


def test_calm_is_for_heavy_and_bursts_spill_over(tmp_path: Path) -> None:
    # A small buffer, so that a burst of what this machine can send is one to heavy.
    with serving_digits(tmp_path, "routing", {"buffer": 2}) as server:
        result = load(server, "digits", rate=10, seconds=3)
        calm = answered_by(server)
        assert result["lost"] == result["duplicates"] == result["strangers"] == 0
        assert calm["digits-xl"] > 2 * calm["digits-nano"]
        for _ in range(2):
            result = load(server, "digits", rate=300, seconds=2)
            assert result["lost"] == result["duplicates"] == result["strangers"] == 0
            # The machine that runs tests is small and busy; most are in time all the same.
            assert result["good"] > 0.8 * result["requests"]
        assert answered_by(server)["digits-nano"] > calm["digits-nano"]


def test_an_application_can_be_served_by_a_policy_of_slots(tmp_path: Path) -> None:
    checkpoint = half_and_half(tmp_path / "policy.json")
    with serving_digits(tmp_path, "rl", {"checkpoint": str(checkpoint)}) as server:
        result = load(server, "digits", rate=100, seconds=4)
        assert result["lost"] == result["duplicates"] == result["strangers"] == 0
        assert result["good"] > 0.8 * result["requests"]
        drawn = answered_by(server)
        total = drawn["digits-xl"] + drawn["digits-nano"]
        assert 0.35 < drawn["digits-xl"] / total < 0.65
