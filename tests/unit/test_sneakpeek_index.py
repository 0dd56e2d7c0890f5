"""SneakPeek models: neighbours, calibration, files; and the quality of classifiers."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fermata.deployments.sneakpeek.building import build_model
from fermata.deployments.sneakpeek.calibration import calibrate
from fermata.deployments.sneakpeek.index import EXACT_MAX, build_index, checksum
from fermata.deployments.sneakpeek.projection import fit_projection
from fermata.deployments.sneakpeek.store import load_model, read_data, save_model
from fermata.foundation.errors import ConfigError
from fermata.profiles.profile import Profile
from fermata.profiles.quality import measure_quality
from fermata.profiles.store import Table, load_file, save_file
from fermata.router.policies.sneakpeek.possible_shares import possible_shares

RNG = np.random.default_rng(5)
CENTRES = np.array([[0, 0, 0, 0], [6, 0, 0, 0], [0, 6, 0, 0]], np.float32)


def draw(count: int, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    labels = RNG.integers(0, 3, count)
    noise = RNG.standard_normal((count, 4)) * spread
    return (CENTRES[labels] + noise).astype(np.float32), labels.astype(np.int64)


@pytest.mark.parametrize("kind", ["exact", "ivf", "hnsw"])
def test_neighbours_vote_for_their_classes(kind: str) -> None:
    samples, labels = draw(600)
    index = build_index(samples, labels, 3, dimensions=2, k=5, kind=kind)
    asked, true = draw(100)
    votes = index.votes(asked)
    assert votes.shape == (100, 3)
    assert np.all(votes.sum(axis=1) == 5)
    assert (votes.argmax(axis=1) == true).mean() > 0.95


def test_auto_is_exact_for_small_sets() -> None:
    samples, labels = draw(50)
    assert build_index(samples, labels, 3).kind == "exact"


def test_auto_has_lists_where_a_look_at_every_sample_would_take_long() -> None:
    samples, labels = draw(EXACT_MAX + 1)
    index = build_index(samples, labels, 3)
    assert index.kind == "ivf"
    asked, true = draw(500)
    exact = build_index(samples, labels, 3, kind="exact")
    right = [(each.votes(asked).argmax(axis=1) == true).mean() for each in (index, exact)]
    assert right[0] >= right[1] - 0.01


def test_projection_keeps_the_directions_that_vary_most() -> None:
    samples = np.zeros((50, 3), np.float32)
    samples[:, 1] = np.arange(50)
    assert np.abs(fit_projection(samples, 1).axes[0]).round(3).tolist() == [0, 1, 0]
    assert np.array_equal(fit_projection(samples, 0)(samples), samples)


def test_calibration_is_the_share_of_votes_by_true_class() -> None:
    votes = np.array([[5, 0], [4, 1], [1, 4], [0, 5]], np.float32)
    peek = calibrate(votes, np.array([0, 0, 1, 1]))
    assert peek.confusion[0] == pytest.approx((9.5 / 11, 1.5 / 11))
    assert peek.recall == (1.0, 1.0)
    assert all(list(row) == sorted(row) for row in peek.hidden)
    with pytest.raises(ConfigError, match="class without a held-out sample"):
        calibrate(votes, np.array([0, 0, 0, 0]))


def test_votes_that_repeat_one_another_count_less() -> None:
    # Half of the time all five neighbours are wrong together.
    right = np.tile(np.array([[5, 0]], np.float32), (40, 1))
    wrong = np.tile(np.array([[0, 5]], np.float32), (40, 1))
    labels = np.array([0] * 30 + [1] * 10 + [1] * 30 + [0] * 10)
    assert calibrate(np.concatenate([right, wrong]), labels).sharpness < 0.5


def test_model_survives_its_file(tmp_path: Path) -> None:
    samples, labels = draw(200)
    data = tmp_path / "data.npz"
    np.savez(data, samples=samples, labels=labels)
    model = build_model(*read_data(data))
    save_model(tmp_path / "model.npz", model)
    again = load_model(tmp_path / "model.npz", data)
    asked, _ = draw(20)
    assert np.array_equal(again.index.votes(asked), model.index.votes(asked))
    assert again.peek == model.peek
    assert again.input_shape == (4,)


def test_model_of_other_data_or_a_damaged_file_is_refused(tmp_path: Path) -> None:
    samples, labels = draw(200)
    path, data = tmp_path / "model.npz", tmp_path / "data.npz"
    save_model(path, build_model(samples, labels))
    samples[0, 0] += 1
    np.savez(data, samples=samples, labels=labels)
    with pytest.raises(ConfigError, match="was not built from"):
        load_model(path, data)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(ConfigError, match=r"is damaged|cannot be read"):
        load_model(path)


def test_held_out_samples_never_enter_the_index() -> None:
    samples, labels = draw(200)
    model = build_model(samples, labels)
    assert len(model.index.labels) == 200 - sum(len(row) for row in model.peek.hidden)


def test_checksum_tells_data_apart() -> None:
    samples, labels = draw(10)
    assert checksum(samples, labels) != checksum(samples + 1, labels)
    assert checksum(samples, labels) != checksum(samples, (labels + 1) % 3)


def test_data_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_data(path)
    np.savez(path, samples=np.zeros((3, 2)), labels=np.array([0, -1, 1]))
    with pytest.raises(ConfigError, match="from 0 up"):
        read_data(path)
    np.savez(path, samples=np.zeros((3, 2)), labels=np.array([0, 1]))
    with pytest.raises(ConfigError, match="3 samples and 2 labels"):
        read_data(path)


def test_quality_of_a_classifier_by_hand(tmp_path: Path) -> None:
    samples = np.arange(10, dtype=np.float32)[:, None]
    labels = np.array([0] * 8 + [1] * 2)

    def model(batch: np.ndarray) -> np.ndarray:
        return np.eye(2)[(batch[:, 0] >= 7).astype(int)]

    found = measure_quality(model, samples, labels, batch=4)
    assert found.accuracy == 0.9
    assert found.recall == (0.875, 1.0)
    assert found.confusion == ((7, 1), (0, 2))
    profile = Profile(
        "m", (1,), (5,), (5,), accuracy=0.9, recall=found.recall, confusion=found.confusion
    )
    save_file(tmp_path / "m.json", Table("m", "cpu", "", (profile,)))
    assert load_file(tmp_path / "m.json").profiles[0].confusion == ((7, 1), (0, 2))


def test_looks_at_many_classes_of_few_samples_are_as_sure_as_they_are_right() -> None:
    rng = np.random.default_rng(3)
    classes = 100

    def draw(each: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Looks that see the true class or one of its three neighbours, and vote for that."""
        labels = np.repeat(np.arange(classes), each)
        off = np.where(rng.random(len(labels)) < 0.6, 0, rng.integers(1, 4, len(labels)))
        seen = (labels + off) % classes
        votes = np.zeros((len(labels), classes), np.float32)
        for _ in range(5):
            stray = rng.integers(0, classes, len(labels))
            voted = np.where(rng.random(len(labels)) < 0.6, seen, stray)
            votes[np.arange(len(labels)), voted] += 1
        return votes, labels

    peek = calibrate(*draw(15))
    votes, labels = draw(20)
    logs = peek.sharpness * votes @ np.log(possible_shares(peek.confusion)).T
    posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
    posterior /= posterior.sum(axis=1, keepdims=True)
    right = (posterior.argmax(axis=1) == labels).mean()
    assert posterior.max(axis=1).mean() == pytest.approx(right, abs=0.05)
