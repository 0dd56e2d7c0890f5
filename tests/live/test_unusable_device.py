"""A backend whose device fails for good, on a real cluster: Ray replaces its process."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from served import Server, serving, wait_until

pytestmark = pytest.mark.live

FRAGILE = '''
import os
from pathlib import Path

HERE = Path(__file__).parent
ERROR = "CUDA error: an illegal memory access was encountered"


class Fragile:
    """The first process that finds a file called `break` has a device of no use from then on."""

    broken = False

    def __call__(self, batch):
        try:
            (HERE / "break").rename(HERE / f"broken-{os.getpid()}")
            self.broken = True
        except FileNotFoundError:
            pass
        self.check_device()
        return 2 * batch

    def check_device(self):
        if self.broken:
            raise RuntimeError(ERROR)


def load():
    return Fragile()
'''
CONFIG: dict[str, Any] = {
    "name": "fragile",
    "applications": [
        {
            "name": "doubler",
            "slo_ms": 4000,
            "input": {"shape": [1]},
            "variants": [
                {
                    "name": "doubler-1",
                    "model": "fragile:load",
                    "latency_ms": [2, 3, 4, 5],
                    "batch_size_max": 4,
                }
            ],
        }
    ],
    "router": {"policy": "eager"},
    "backend": {"count": 2, "device": "cpu", "cpus": 0.1},
}


def ask(server: Server, value: float) -> float:
    """Send one number and return the model's answer; raises where it is refused."""
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}/v2/models/doubler/infer",
        json.dumps({"inputs": [tensor]}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return float(json.loads(answer.read())["outputs"][0]["data"][0])


def test_the_process_is_replaced_and_requests_go_on(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(FRAGILE)
    with serving(tmp_path, CONFIG, backends=2) as server:
        before = set(server.status()["backends"])
        (tmp_path / "break").touch()
        asked = 0

        def replaced() -> bool:
            nonlocal asked
            asked += 1
            # Nobody hears of it: what failed there has run elsewhere.
            assert ask(server, asked) == 2 * asked
            now = set(server.status()["backends"])
            return len(now) == 2 and now != before

        wait_until(replaced, 60)
        [broken] = tmp_path.glob("broken-*")
        assert not Path(f"/proc/{broken.name.partition('-')[2]}").exists()
        [lost] = server.status()["lost_backends"]
        assert "device unusable: RuntimeError: CUDA error" in lost
        assert server.status()["applications"]["doubler"]["dropped"] == {}
