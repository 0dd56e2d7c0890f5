"""Two groups of backends, each with limits and models of its own: both follow their load."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from served import Server, load, serving, wait_until

pytestmark = pytest.mark.live
NAMES = ("big", "small")
CONFIG: dict[str, Any] = {
    "applications": [
        {
            "name": name,
            "slo_ms": 500,
            "input": {"name": "input", "dtype": "UINT8", "shape": [200]},
            # Batches save nothing: 50 requests a second, and 25 on the slower group.
            "variants": [
                {"name": f"{name}-1", "model": "emulated", "alpha_ms": 20, "beta_ms": 0.001}
            ],
        }
        for name in NAMES
    ],
    "frontend": {"processes": 1},
    "backend": {"device": "emulated", "cpus": 0.05},
    "backends": [
        {"count": 1, "maximum": 2, "models": ["big"]},
        {"count": 1, "maximum": 3, "slower": 2, "models": ["small"]},
    ],
    "autoscaler": {"maximum": 5, "window_s": 1, "startup_s": 2},
}


def there(server: Server) -> Counter[tuple[int, str]]:
    """Backends by sub-cluster and what they hold."""
    told = server.status()["backends"].values()
    return Counter((each["sub_cluster"], ",".join(each["models"])) for each in told)


def ended(server: Server, name: str) -> tuple[int, int]:
    """(good, bad) requests so far."""
    told = server.status()["applications"][name]
    return told["good"], told["late"] + sum(told["dropped"].values())


def test_each_group_follows_its_own_load(tmp_path: Path) -> None:
    few, many = {(0, "big-1"): 1, (1, "small-1"): 1}, {(0, "big-1"): 2, (1, "small-1"): 3}
    with serving(tmp_path, CONFIG, backends=2) as server:
        wait_until(lambda: there(server) == few, 30)
        with ThreadPoolExecutor() as threads:
            # 1.6 backends' worth of the first group, and 2.2 of the other.
            rates = {"big": 80.0, "small": 55.0}
            loads = [threads.submit(load, server, name, rates[name], 45.0) for name in NAMES]
            wait_until(lambda: there(server) == many, 60)
            # What comes once both have grown is served in time; what waited then has ended.
            later = {name: sum(ended(server, name)) + 100 for name in NAMES}
            wait_until(lambda: all(sum(ended(server, name)) > later[name] for name in NAMES), 30)
            before = {name: ended(server, name) for name in NAMES}
            wait_until(
                lambda: all(sum(ended(server, name)) > sum(before[name]) + 200 for name in NAMES),
                30,
            )
            after = {name: ended(server, name) for name in NAMES}
            told = [each.result() for each in loads]
        assert all(each["lost"] == 0 for each in told), told
        for name in NAMES:
            good, bad = (now - then for now, then in zip(after[name], before[name], strict=True))
            assert good > 0.9 * (good + bad), (name, good, bad)
        wait_until(lambda: there(server) == few, 60)
