"""How settings of Triton on a GPU are laid out, take turns and are told apart."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu_triton
from benchmarks.gpu_figures import SENDERS, SLO_MS
from benchmarks.gpu_triton import (
    ONE,
    THREE,
    Sweep,
    best_of,
    clients_of,
    held_by,
    last_good,
    sweeps_of,
    turn_shares,
    turns,
)
from benchmarks.peer_servers.triton_gpu import (
    STREAMS,
    Network,
    Setting,
    grid,
    make_environment,
    model_config,
)
from fermata.clients.load.ledger import LoadLedger
from fermata.clients.load.sender import Target
from fermata.clients.wire.tensors import RawTensor
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms, seconds

SETTINGS = grid((2,), (32, 64), (1, 2))
NETWORK = Network("net", "torchvision:resnet50", (3, 2, 2), "cuda", Path("choice"))


def test_the_setting_that_stays_good_the_longest_is_searched() -> None:
    limits = dict(zip(SETTINGS, (5_000, 6_000, 7_500, 3_000), strict=True))
    asked: list[tuple[int, float]] = []

    def ask(settings: Sequence[Setting], rates: Sequence[float]) -> Sequence[float]:
        assert len(set(rates)) == 1
        asked.append((len(settings), rates[0]))
        return [1.0 if rates[0] <= limits[each] else 0.9 for each in settings]

    setting, rate = best_of(SETTINGS, 4_000.0, ask)
    # 4,000, 5,200, and from 6,760 on one alone is left.
    assert asked == [(4, 4_000.0), (3, 5_200.0), (2, pytest.approx(6_760.0))]
    assert setting == SETTINGS[2]
    assert rate == pytest.approx(8_788.0)


def test_where_none_is_good_the_best_is_searched_from_that_rate() -> None:
    shares = [0.3, 0.7, 0.2, 0.1]
    assert best_of(SETTINGS, 4_000.0, lambda *_: shares) == (SETTINGS[1], 4_000.0)


def test_a_ramp_ends_at_the_first_rate_that_is_not_good() -> None:
    assert last_good([1.0, 2.0, 3.0, 4.0], [1.0, 0.99, 0.98, 1.0]) == 2.0
    assert last_good([1.0, 2.0], [0.9, 1.0]) == 0.0


def test_what_is_tried_first_is_one_of_the_settings() -> None:
    for quick in (False, True):
        for sweep in sweeps_of([NETWORK], ["triton", "triton-three"], quick):
            assert sweep.middle in sweep.settings


def test_settings_take_turns() -> None:
    due = turns([1_000.0, 1_000.0], 3)
    turn_s, gap_s = gpu_triton.TURN_S, gpu_triton.GAP_S
    first = due.at_ns < seconds(turn_s)
    assert set(due.target[first].tolist()) == {0, 1, 2}
    assert set(due.target[~first].tolist()) == {3, 4, 5}
    assert due.at_ns[first].max() < seconds(turn_s - gap_s)
    assert len(due) == pytest.approx(2 * 1_000 * (turn_s - gap_s), rel=0.1)


def test_a_turn_counts_its_own_answers_once_it_has_settled() -> None:
    due = turns([1_000.0, 1_000.0], 1)
    tensor = RawTensor("input", "UINT8", (1, 1), b"0")
    targets = [Target(name, tensor, ms(SLO_MS), timeout=False) for name in "ab"]
    ledger = LoadLedger.of(due)
    settled_ns = seconds(gpu_triton.SETTLE_S)
    for index, at_ns in enumerate(due.at_ns.tolist()):
        # Late are all of the second one, and of the first one those before it has settled.
        late = due.target[index] == 1 or at_ns < settled_ns
        ledger.send(index, at_ns)
        ledger.answer(index, at_ns + ms(SLO_MS) + (1 if late else 0), "OK", "")
    assert turn_shares(ledger, targets, 2) == [1.0, 0.0]


def test_no_stream_has_requests_of_two_models() -> None:
    rng = np.random.default_rng(1)
    target = rng.integers(0, 3, 20_000)
    clients = clients_of(target, 3, rng)
    streams: dict[tuple[int, int], set[int]] = {}
    for client, model in zip(clients.tolist(), target.tolist(), strict=True):
        streams.setdefault((client % SENDERS, client % STREAMS), set()).add(model)
    assert len(streams) == SENDERS * STREAMS
    assert all(len(models) == 1 for models in streams.values())


def test_one_model_alone_goes_to_all_streams_in_turn() -> None:
    assert not clients_of(np.zeros(5, np.int64), 1, np.random.default_rng(1)).any()


def test_nothing_is_loaded_twice() -> None:
    networks = [NETWORK, Network("other", "torchvision:vit_b_16", (3, 2, 2), "cuda", Path("c"))]
    sweeps = [
        Sweep("one", networks[:1], ONE, ONE[0], 1.0),
        Sweep("both", networks, THREE, THREE[0], 1.0),
    ]
    held = held_by(sweeps)
    assert len(ONE) == 12
    assert set(THREE) <= set(ONE)
    assert len(held) == len(set(held)) == len(ONE) + len(THREE)


def test_knobs_are_written_for_triton() -> None:
    config = model_config(NETWORK, Setting(0.5, 64, 2), Path("told.json"), slo_ms=20)
    for line in (
        'name: "net-0.5-64-2"',
        "max_batch_size: 64",
        "preferred_batch_size: [64]",
        "max_queue_delay_microseconds: 500",
        "default_timeout_microseconds: 14000",
        "dims: [12]",
        "{count: 2 kind: KIND_CPU}",
    ):
        assert line in config


def test_an_unpacked_wheel_is_run_on_the_packages_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "site/pytriton/tritonserver/bin/tritonserver"
    program.parent.mkdir(parents=True)
    program.touch(0o644)
    (tmp_path / "site/pytriton/__init__.py").touch()
    monkeypatch.setattr(sys, "path", [os.fspath(tmp_path / "site"), *sys.path])
    monkeypatch.delitem(sys.modules, "pytriton", raising=False)
    venv = make_environment(tmp_path / "env")
    assert os.access(venv.packages / "pytriton/tritonserver/bin/tritonserver", os.X_OK)
    assert os.fspath(tmp_path / "site") in (venv.packages / "path.pth").read_text().splitlines()


def test_triton_must_be_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [os.fspath(tmp_path)])
    with pytest.raises(ConfigError, match="nvidia-pytriton"):
        make_environment(tmp_path / "env")
