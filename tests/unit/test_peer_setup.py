"""How a scene and a peer's knobs become what its processes are told."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peer_servers.knobs import BEST, GRIDS, SPLIT, Knobs
from benchmarks.peer_servers.launch import PEERS, gpus_of, setup_of
from benchmarks.peer_servers.limits import Stalls
from benchmarks.peer_servers.scenes import Model, Scene, eight_models, one_gpu
from benchmarks.peer_servers.setup import VARIABLE, claim, read_setup


def test_the_largest_batch_runs_in_its_share_of_the_slo() -> None:
    model = one_gpu().models[0]
    assert model.batch_size_max(0.5) == 20  # 5 + 20 = 25 of 50 ms
    assert model.batch_size_max(0.42) == 16
    assert model.batch_size_max(0.05) == 1


def test_times_and_slos_of_the_table_are_taken_three_times() -> None:
    resnet = eight_models().models[0]
    assert (resnet.name, resnet.slo_ms) == ("ResNet50", 81)
    assert resnet.run_ms(4) == pytest.approx(3 * (5.378 + 4 * 2.05))


def test_shares_follow_zipf() -> None:
    shares = eight_models().shares()
    assert sum(shares) == pytest.approx(1)
    assert shares[0] / shares[7] == pytest.approx(8**0.9)


def test_split_models_balance_the_gpus() -> None:
    models = tuple(Model(f"m{cost}", cost, 0.0, 1000.0) for cost in (4.0, 3.0, 2.0, 1.0))
    scene = Scene("four", models, gpus=2)
    assert gpus_of(scene, Knobs(placement=SPLIT)) == [(0,), (1,), (1,), (0,)]
    assert gpus_of(scene, Knobs(workers=2)) == [(0, 1, 0, 1)] * 4


def test_processes_read_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of(eight_models(), Knobs(queue=0.5, placement=SPLIT), str(tmp_path), 1234)
    monkeypatch.setenv(VARIABLE, str(setup.write()))
    assert read_setup() == setup
    assert setup.models[0].queue_ms == 40.5


def test_workers_claim_numbers_of_their_own(tmp_path: Path) -> None:
    assert [claim(tmp_path, name) for name in ("a", "a", "b", "a")] == [0, 1, 0, 2]


@pytest.mark.parametrize("scene", GRIDS)
def test_the_best_known_were_swept(scene: str) -> None:
    for peer in PEERS:
        grid = GRIDS[scene][peer]
        assert len(set(grid)) == len(grid)
        assert BEST[scene][peer] in grid


def test_the_machine_is_blamed_only_for_what_it_can_explain() -> None:
    stalls = Stalls()
    assert not stalls.explain(0.05)
    stalls.stolen_share = 0.04
    assert stalls.explain(0.05)
    assert not stalls.explain(0.7)  # hopeless, whoever had those 4 %
    stalls.stolen_share, stalls.longest_s = 0.0, 40.0
    assert stalls.explain(0.7)


def test_a_peer_needs_numpy_alone_to_emulate_a_gpu() -> None:
    # Its environment has nothing of ours.
    ours = ("grpc", "msgspec", "pydantic", "ray", "yaml")
    code = (
        "import sys, benchmarks.peer_servers.setup, benchmarks.peer_servers.fan_out\n"
        f"print([name for name in {ours} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
