"""Zoos of measured DNNs for Jellyfish's figures."""

import json
from pathlib import Path

import pytest

from benchmarks.jellyfish_data import Data, measured
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.policies.jellyfish.problem import make_zoo

SIDES = (128, 160, 192)
DATA = Data(make_zoo((0.2, 0.3, 0.4), [[ms(20)]] * 3), SIDES, (8e4, 1.2e5, 1.6e5), {})


def profiles(path: Path, accuracy: dict[int, float]) -> str:
    rows = [
        {"name": f"own@{side}", "batches": [1, 2], "p50_ms": [1, 2], "p99_ms": [3, 4]}
        | ({"accuracy": accuracy[side]} if side in accuracy else {})
        for side in (192, 128, 160, 320)
    ]
    rows.append({"name": "other@128", "batches": [1], "p50_ms": [9]})
    path.write_text(json.dumps({"schema": 1, "table": "t", "device": "d", "profiles": rows}))
    return f"{path}#own"


def test_run_times_are_the_tails_that_were_measured(tmp_path: Path) -> None:
    found = measured(DATA, profiles(tmp_path / "own.json", {}))
    assert found.input_sizes == SIDES
    assert found.zoo.latency_ns == ((ms(3), ms(4)),) * 3
    assert found.frame_bits == DATA.frame_bits


def test_accuracy_is_the_measured_one_where_there_is_one(tmp_path: Path) -> None:
    found = measured(DATA, profiles(tmp_path / "own.json", {128: 0.5, 160: 0.6, 192: 0.7}))
    assert found.zoo.accuracy == (0.5, 0.6, 0.7)
    assert measured(DATA, profiles(tmp_path / "own.json", {})).zoo.accuracy == (0.2, 0.3, 0.4)


def test_larger_ones_that_are_no_better_are_left_out(tmp_path: Path) -> None:
    found = measured(DATA, profiles(tmp_path / "own.json", {128: 0.5, 160: 0.4, 192: 0.6}))
    assert found.input_sizes == (128, 192)
    assert found.frame_bits == (8e4, 1.6e5)


def test_file_without_the_model_is_refused(tmp_path: Path) -> None:
    path = profiles(tmp_path / "own.json", {}).partition("#")[0]
    with pytest.raises(ConfigError, match="no third@SIDE there"):
        measured(DATA, f"{path}#third")
