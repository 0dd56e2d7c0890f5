"""Bursts on the digits family, served live: routed per request, and by a trained policy."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("sklearn")
pytest.importorskip("torch", reason="training needs the extra torch")
from served import Server, descendants, serving, wait_until

from benchmarks.slow_digits import PACE_MS
from benchmarks.variants_live import Seen, accuracies, observe
from benchmarks.workloads import edge
from fermata.router.policies.rl.checkpoint import load_checkpoint
from fermata.simulator.learning.ppo import Settings
from fermata.simulator.learning.training import Lesson, train

pytestmark = [pytest.mark.live, pytest.mark.long]

SLO_MS = 300
CALM_RPS, BURST_RPS = 4.0, 45.0
CHANGE_HZ = 0.01
"""Of bursts and calms: were they short, what a slot loses when a burst begins in it would outweigh
the better answers of a calm, and the policy would be right not to tell them apart."""
VARIANTS = ("xl", "nano")
"""A heavy one that 15 requests a second fill, and a light one for 80."""


def trained(path: Path, accuracy: dict[str, float]) -> Path:
    """A policy for one heavy and one light instance of `learned`, trained for a few seconds."""
    variants = [
        {"name": f"learned-{each}", "latency_ms": [sum(PACE_MS[each])], "accuracy": accuracy[each]}
        for each in VARIANTS
    ]
    scenario = edge(
        backends=2,
        policy_options={"mix": "1/1"},
        arrivals={
            "process": "map",
            "d0": [[-BURST_RPS - CHANGE_HZ, CHANGE_HZ], [CHANGE_HZ, -CALM_RPS - CHANGE_HZ]],
            "d1": [[BURST_RPS, 0], [0, CALM_RPS]],
        },
        applications=[{"name": "digits", "slo_ms": SLO_MS, "variants": variants}],
    )
    settings = Settings(copies=128, horizon=32, updates=4, imitation_rounds=12)
    train(scenario, Lesson(with_arrivals=True, settings=settings), path=path)
    assert load_checkpoint(path).tiers == (0, 1)
    return path


def application(name: str, accuracy: dict[str, float], **policy: Any) -> dict[str, Any]:
    return {
        "name": name,
        "slo_ms": SLO_MS,
        "input": {"name": "input", "dtype": "FP32", "shape": [64]},
        **policy,
        "variants": [
            {
                "name": f"{name}-{each}",
                "model": f"benchmarks.slow_digits:{each}",
                "batch_size_max": 1,
                "accuracy": accuracy[each],
            }
            for each in VARIANTS
        ],
    }


def see(server: Server, name: str, rate_rps: float, seconds: float) -> Seen:
    address = f"127.0.0.1:{server.grpc_port}"
    return asyncio.run(observe(address, rate_rps, seconds, 3, name, SLO_MS))


def backends(server: Server) -> list[int]:
    """Process ids of the backends."""
    found: list[int] = []
    for pid in descendants(server.process.pid):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        if title.startswith("ray::ServeReplica") and "Backend" in title:
            found.append(pid)
    return found


def test_bursts_are_routed_and_a_lost_instance_is_made_up_for(tmp_path: Path) -> None:
    accuracy = accuracies()
    checkpoint = trained(tmp_path / "policy.json", accuracy)
    options = {"mix": "1/1"}
    learned = {"policy": "rl", "policy_options": {**options, "checkpoint": str(checkpoint)}}
    config = {
        "applications": [
            application("careful", accuracy, policy="routing", policy_options=options),
            application("learned", accuracy, **learned),
        ],
        "backend": {"count": 4, "device": "cpu", "cpus": 0.2},
    }
    with serving(tmp_path, config, backends=4) as server:
        for name in ("careful", "learned"):
            see(server, name, CALM_RPS, 1.0)
            calm = see(server, name, CALM_RPS, 4.0)
            burst = see(server, name, BURST_RPS, 3.0)
            # The machine that runs tests is small and busy; most are in time all the same.
            assert calm.in_time > 0.8 * calm.sent
            assert calm.best > 0.6 * calm.sent
            assert burst.in_time > 0.7 * burst.sent
            assert burst.best < 0.5 * burst.sent
        assert _policy(server)["slots"] > _policy(server)["slots_fallen_back"]
        _lose_an_instance(server)


def _policy(server: Server) -> dict[str, float]:
    return dict(server.status()["applications"]["learned"]["policy"])


def _lose_an_instance(server: Server) -> None:
    """Kill backends until it was one of the learned application's; it is served all the same."""
    result: list[Seen] = []
    load = threading.Thread(target=lambda: result.append(see(server, "learned", 30.0, 8.0)))
    load.start()
    before = _policy(server)["slots_fallen_back"]
    for pid in backends(server):
        os.kill(pid, signal.SIGKILL)
        try:
            wait_until(lambda: _policy(server)["slots_fallen_back"] > before, 3.0)
            break
        except AssertionError:
            continue
    load.join()
    assert _policy(server)["slots_fallen_back"] > before
    assert result[0].in_time > 0.6 * result[0].sent
