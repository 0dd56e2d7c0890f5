"""Class frequencies learnt from looks: false alarms, changes, and classes that seldom come."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fermata.deployments.sneakpeek.calibration import calibrate
from fermata.router.policies.sneakpeek.change_test import ChangeTest
from fermata.router.policies.sneakpeek.classes import Classes, Peek
from fermata.router.policies.sneakpeek.estimator import Estimator
from fermata.router.policies.sneakpeek.frequencies import Frequencies

NEIGHBOURS = 5
WEAK_STRONG = ((0.999, 0.0), (0.98, 0.95))
"""A variant that never finds the rare class, and one that does."""


def looks(
    labels: np.ndarray, confusion: np.ndarray, rng: np.random.Generator, agree: float = 1.0
) -> np.ndarray:
    """Votes: all neighbours name one class, which is the right one that often. Each of them goes
    its own way with probability 1 - agree."""
    count = len(confusion)
    drawn = (confusion.cumsum(axis=1)[labels] < rng.random(len(labels))[:, None]).sum(axis=1)
    named = np.repeat(np.minimum(drawn, count - 1)[:, None], NEIGHBOURS, axis=1)
    stray = rng.random(named.shape) > agree
    named[stray] = rng.integers(0, count, int(stray.sum()))
    votes = np.zeros((len(labels), count), np.float32)
    np.add.at(votes, (np.repeat(np.arange(len(labels)), NEIGHBOURS), named.reshape(-1)), 1.0)
    return votes


def noisy(count: int, right: float) -> np.ndarray:
    return (right - (1 - right) / max(1, count - 1)) * np.eye(count) + (1 - right) / max(
        1, count - 1
    )


def shares_like(kind: str, count: int) -> np.ndarray:
    shares = {
        "even": np.ones(count),
        "falling": 1 / np.arange(1, count + 1),
        "one above all": np.array([9.0 * (count - 1), *[1.0] * (count - 1)]),
    }[kind]
    return np.asarray(shares / shares.sum())


@pytest.mark.parametrize(("count", "kind"), [(2, "even"), (10, "even"), (30, "falling")])
def test_steady_stream_is_taken_for_one(count: int, kind: str) -> None:
    rng = np.random.default_rng(count)
    confusion = noisy(count, 0.9)
    even = np.repeat(np.arange(count), 200)
    peek = calibrate(looks(even, confusion, rng, agree=0.9), even)
    estimator = Estimator(Classes(((0.9,) * count,), peek=peek), ())
    labels = rng.choice(count, 4000, p=shares_like(kind, count))
    answers_at_once = 0
    for votes in looks(labels, confusion, rng, agree=0.9).tolist():
        answers_at_once += estimator.on_votes(votes).label_accuracy > 0
    assert estimator.frequencies.alarms <= 1
    assert answers_at_once >= 0.9 * len(labels)


@pytest.mark.parametrize("count", [2, 10, 100, 1000])
@pytest.mark.parametrize("kind", ["even", "falling", "one above all"])
def test_false_alarms_keep_their_rate_with_any_number_of_classes(count: int, kind: str) -> None:
    rng = np.random.default_rng([count, len(kind)])
    test = ChangeTest(count)
    named = rng.choice(count, 20_000, p=shares_like(kind, count)).tolist()
    assert sum(test.observe(each) is not None for each in named) <= 2


@pytest.mark.parametrize("count", [2, 10, 100, 1000])
def test_change_of_half_of_the_mass_is_found_within_300_requests(count: int) -> None:
    rng = np.random.default_rng(count)
    before = shares_like("even", count)
    half = np.arange(count) < count // 2
    for after in (np.where(half, 2 * before, 0.0), 0.5 * before + 0.5 * np.eye(count)[-1]):
        test = ChangeTest(count)
        for each in rng.choice(count, max(2000, 8 * count), p=before).tolist():
            test.observe(each)
        found = [test.observe(each) for each in rng.choice(count, 300, p=after).tolist()]
        assert any(found)


@pytest.mark.parametrize(
    ("rare", "wrong", "count", "requests"),
    [(0.01, 0.03, 2, 40_000), (0.01, 0.03, 10, 40_000), (0.001, 0.001, 2, 100_000)],
)
def test_rare_class_keeps_its_share(rare: float, wrong: float, count: int, requests: int) -> None:
    rng = np.random.default_rng([count, requests])
    confusion = noisy(count, 0.97) if count > 2 else np.eye(2)
    confusion[:-1, -1] = wrong
    confusion[-1] = [0.1 / (count - 1)] * (count - 1) + [0.9]
    confusion /= confusion.sum(axis=1, keepdims=True)
    found = Frequencies(confusion)
    shares = np.array([(1 - rare) / (count - 1)] * (count - 1) + [rare])
    named = rng.choice(count, requests, p=shares @ confusion)
    for each in named.tolist():
        found.observe(found.naming[each], each)
    assert rare / 2 <= found.settled[-1] <= 2 * rare


def test_rare_class_is_served_by_the_variant_that_finds_it() -> None:
    rng = np.random.default_rng(3)
    confusion = np.array([[0.97, 0.03], [0.1, 0.9]])
    even = np.repeat([0, 1], 4000)
    for agree in (1.0, 0.8):
        peek = calibrate(looks(even, confusion, rng, agree), even)
        estimator = Estimator(Classes(WEAK_STRONG, peek=peek), ())
        knowing = Estimator(Classes(WEAK_STRONG, peek=peek, prior="even"), ())
        labels = (rng.random(20_000) < 0.01).astype(int)
        served: list[tuple[bool, bool]] = []
        for label, votes in zip(labels, looks(labels, confusion, rng, agree).tolist(), strict=True):
            worths = estimator.on_votes(votes).accuracies
            best = np.array(WEAK_STRONG) @ (np.array([0.99, 0.01]) * knowing.likelihoods(votes))
            if label:
                served.append((worths[1] > worths[0], best[1] > best[0]))
        ours, theirs = np.mean(served[20:], axis=0)
        assert estimator.frequencies.settled[1] == pytest.approx(0.01, rel=0.6)
        assert ours >= theirs - 0.05


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60))
def test_frequencies_stay_a_distribution(named: list[int]) -> None:
    found = Frequencies(noisy(3, 0.8))
    for each in named * 8:
        found.observe(found.naming[each], each)
    assert sum(found.settled) == pytest.approx(1)
    assert min(found.settled) > 0


def test_one_request_moves_frequencies_towards_its_posterior() -> None:
    found = Frequencies(noisy(3, 0.8))
    evidence: Sequence[tuple[float, ...]] = ((1.0, 0.2, 0.1), (0.1, 0.4, 1.0))
    for likelihoods in evidence:
        before, gain, seen = found.settled.tolist(), found.gain, found.seen
        found.observe(np.array(likelihoods), int(np.argmax(likelihoods)))
        joint = [share * each for share, each in zip(before, likelihoods, strict=True)]
        for share, each, now in zip(before, joint, found.settled, strict=True):
            # Even shares count for one request all through.
            posterior = (seen * each / sum(joint) + 1 / 3) / (seen + 1)
            assert now == pytest.approx(share + gain * (posterior - share))


def test_new_start_after_a_change_is_what_has_come_since() -> None:
    found = Frequencies(np.array(Peek(((0.9, 0.1), (0.2, 0.8)), (0.9, 0.8)).confusion))
    for each in [0] * 500 + [1] * 60:
        found.observe(found.naming[each], each)
        if found.alarms:
            break
    assert found.alarms == 1
    assert found.settled[1] > 0.5
    assert found.seen < 128
