"""SneakPeek's estimates: Eqs. 7 to 11, calibration, frequencies, weights and floors."""

from math import exp, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fermata.foundation.errors import ConfigError
from fermata.router.policies.sneakpeek.classes import (
    Classes,
    Peek,
    check_classes,
    lower_recall,
    measured_recalls,
    sharpened,
)
from fermata.router.policies.sneakpeek.estimator import Estimator, dirichlet
from fermata.router.policies.sneakpeek.penalty import linear, load_penalty, sigmoid, step
from fermata.router.policies.sneakpeek.possible_shares import TINY

GOOD = Peek(((0.9, 0.1), (0.2, 0.8)), (0.9, 0.8))
BLIND = Peek(((0.5, 0.5), (0.5, 0.5)), (0.5, 0.5))
WEAK_STRONG = ((0.98, 0.2), (0.95, 0.9))
"""Recalls of a weak and a strong variant on a common and a rare class."""


def test_sharpened_accuracy_is_recall_weighted_by_class() -> None:
    assert sharpened((0.9, 0.5), (0.75, 0.25)) == pytest.approx(0.8)


def test_dirichlet_posterior_on_the_papers_votes() -> None:
    # Section 4.2: two neighbours say no fall, three say fall.
    assert dirichlet((0.5, 0.5), (2, 3)) == pytest.approx([2.5 / 6, 3.5 / 6])


def test_jeffreys_prior_takes_raw_votes_and_judges_the_short_circuit_by_its_profile() -> None:
    estimate = Estimator(Classes(WEAK_STRONG, peek=GOOD, prior="jeffreys"), ()).on_votes((2, 3))
    assert estimate.classes == pytest.approx((2.5 / 6, 3.5 / 6))
    assert estimate.accuracies[0] == pytest.approx(0.98 * 2.5 / 6 + 0.2 * 3.5 / 6)
    assert (estimate.label, estimate.likely) == (1, 1)
    assert estimate.label_accuracy == pytest.approx(0.85)


def test_experts_prior_is_added_to_the_votes() -> None:
    estimate = Estimator(Classes(WEAK_STRONG, peek=GOOD, prior=(9.5, 0.5)), ()).on_votes((2, 3))
    assert estimate.classes == pytest.approx((11.5 / 15, 3.5 / 15))


def test_calibrated_posterior_is_bayes_with_the_confusion_matrix() -> None:
    estimate = Estimator(Classes(WEAK_STRONG, peek=GOOD, prior="even"), ()).on_votes((0, 1))
    assert estimate.classes == pytest.approx((0.1 / 0.9, 0.8 / 0.9), abs=1e-3)


def test_sharpness_makes_one_vote_of_several() -> None:
    third = Peek(GOOD.confusion, GOOD.recall, sharpness=1 / 3)
    one = Estimator(Classes(WEAK_STRONG, peek=GOOD, prior="even"), ()).on_votes((0, 1))
    three = Estimator(Classes(WEAK_STRONG, peek=third, prior="even"), ()).on_votes((0, 3))
    assert three.classes == pytest.approx(one.classes)


def test_blind_sneakpeek_model_changes_nothing() -> None:
    estimator = Estimator(Classes(WEAK_STRONG, peek=BLIND), (0.59, 0.925))
    for votes in ((5, 0), (0, 5), (2, 3)) * 40:
        estimate = estimator.on_votes(votes)
    assert estimate.accuracies == pytest.approx(estimator.profiled.accuracies)


def test_estimates_never_need_evidence() -> None:
    assert Estimator(Classes(WEAK_STRONG), (0.6, 0.9)).profiled.accuracies == (0.6, 0.9)


def draw_votes(rng: np.random.Generator, share: float) -> tuple[float, float]:
    rare = rng.random() < share
    first = rng.random() < GOOD.confusion[int(rare)][0]
    return (1.0, 0.0) if first else (0.0, 1.0)


def test_frequencies_are_learnt_from_evidence_alone() -> None:
    rng = np.random.default_rng(1)
    estimator = Estimator(Classes(WEAK_STRONG, peek=GOOD), ())
    for _ in range(3000):
        estimator.on_votes(draw_votes(rng, 0.1))
    assert estimator.frequencies.settled[1] == pytest.approx(0.1, abs=0.05)


def test_frequencies_follow_a_change_and_settle_again() -> None:
    rng = np.random.default_rng(2)
    estimator = Estimator(Classes(WEAK_STRONG, peek=GOOD), ())
    for _ in range(1000):
        estimator.on_votes(draw_votes(rng, 0.05))
    before = estimator.frequencies.alarms
    for _ in range(100):
        estimator.on_votes(draw_votes(rng, 0.9))
    assert estimator.frequencies.alarms > before
    assert estimator.frequencies.settled[1] > 0.5
    for _ in range(900):
        estimator.on_votes(draw_votes(rng, 0.9))
    assert estimator.frequencies.settled[1] == pytest.approx(0.9, abs=0.07)


def plain(classes: Classes, shares: list[float], votes: list[int]) -> tuple[list[float], ...]:
    """The same estimate as sums over classes, one after another: posterior and worths."""
    assert classes.peek is not None
    count, sharpness = classes.count, classes.peek.sharpness
    likelihoods = [
        prod(
            max(share, TINY / count) ** (sharpness * each)
            for share, each in zip(row, votes, strict=True)
        )
        for row in classes.peek.confusion
    ]
    joint = [share * each for share, each in zip(shares, likelihoods, strict=True)]
    theta = [each / sum(joint) for each in joint]
    gains = [
        share * weight * (Estimator.rules.floored_weight if floor else 1.0)
        for share, weight, floor in zip(theta, classes.weights, classes.recall_floors, strict=True)
    ]
    worths = [
        0.0
        if any(right < floor for right, floor in zip(row, classes.recall_floors, strict=True))
        else sharpened(row, gains)
        for row in classes.recall
    ]
    return theta, worths


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_estimates_are_the_plain_formula_s(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))

    def row(least: float, most: float) -> tuple[float, ...]:
        values = st.floats(least, most)
        return tuple(data.draw(st.lists(values, min_size=count, max_size=count)))

    confusion = tuple(row(0.01, 1.0) for _ in range(count))
    peek = Peek(confusion, row(0, 1), data.draw(st.floats(0.2, 1.0)))
    floors = tuple(floor if floor > 0.3 else 0.0 for floor in row(0, 0.9))
    # The first variant keeps every floor.
    recall = ((1.0,) * count, row(0, 1), row(0, 1))
    classes = Classes(recall, (), row(0.1, 5), floors, peek)
    estimator = Estimator(classes, ())
    for _ in range(data.draw(st.integers(1, 8))):
        votes = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
        estimate = estimator.on_votes(votes)
        theta, worths = plain(classes, estimator.frequencies.settled.tolist(), votes)
        assert estimate.classes == pytest.approx(theta, rel=1e-9)
        assert estimate.accuracies == pytest.approx(worths, rel=1e-9)


# Class weights and recall floors


def test_class_weights_change_which_variant_is_worth_more() -> None:
    plain = Estimator(Classes(((0.99, 0.1), (0.9, 0.9)), peek=GOOD, prior=(19, 1)), ())
    heavy = Estimator(
        Classes(((0.99, 0.1), (0.9, 0.9)), weights=(1, 20), peek=GOOD, prior=(19, 1)), ()
    )
    one, other = plain.on_votes((5, 0)).accuracies, heavy.on_votes((5, 0)).accuracies
    assert one[0] > one[1]
    assert other[0] < other[1]


def test_recall_floor_bars_weak_variants_where_the_class_may_be_present() -> None:
    hidden = tuple((0.05, 0.5, 0.9, 0.9, 0.9, 0.9, 0.95, 0.95, 0.95, 0.95) for _ in range(2))
    peek = Peek(GOOD.confusion, GOOD.recall, hidden=hidden)
    classes = Classes(WEAK_STRONG, recall_floors=(0, 0.8), peek=peek)
    estimator = Estimator(classes, ())
    assert estimator.profiled.accuracies[0] == 0
    # A tenth of the class may go unseen: 1 - 0.8 / 0.9, so the second least probability counts.
    assert estimator.unseen[1] == (0.5, 0.0)
    assert estimator.on_votes((5, 0)).accuracies[0] > 0
    assert estimator.on_votes((0, 5)).accuracies[0] == 0
    assert estimator.on_votes((0, 5)).accuracies[1] > 0


def test_recall_floor_bars_a_short_circuit_that_may_miss_the_class() -> None:
    peek = Peek(GOOD.confusion, (0.9, 0.7))
    floored = Estimator(Classes(WEAK_STRONG, recall_floors=(0, 0.8), peek=peek, prior="even"), ())
    assert floored.on_votes((5, 0)).label_accuracy == 0
    free = Estimator(Classes(WEAK_STRONG, peek=peek, prior="even"), ())
    assert free.on_votes((5, 0)).label_accuracy > 0.5


def test_recall_floor_bars_an_answer_at_once_however_good_looks_are_as_a_rule() -> None:
    # Looks find nine in ten of the class, but these votes are the tenth's.
    peek = Peek(GOOD.confusion, (0.9, 0.9))
    prior = (19.0, 1.0)
    floored = Estimator(Classes(WEAK_STRONG, recall_floors=(0, 0.8), peek=peek, prior=prior), ())
    assert floored.on_votes((5, 0)).label_accuracy == 0
    # Naming the class cannot miss it.
    named = floored.on_votes((0, 5))
    assert named.label == 1
    assert named.label_accuracy > 0


def test_requests_on_the_edge_of_a_floor_are_shared_out() -> None:
    edge = Estimator(Classes(WEAK_STRONG, peek=GOOD, prior="even"), ()).on_votes((5, 0)).classes[1]
    hidden = tuple((edge,) * 5 + (0.9,) * 15 for _ in range(2))
    peek = Peek(GOOD.confusion, GOOD.recall, hidden=hidden)
    classes = Classes(WEAK_STRONG, recall_floors=(0, 0.8), peek=peek, prior="even")
    estimator = Estimator(classes, ())
    # Of twenty 1 - 0.8 / 0.9 may go unseen: two, and five are like these votes.
    assert estimator.unseen[1] == (edge, 0.4)
    weak = [estimator.on_votes((5, 0)).accuracies[0] > 0 for _ in range(10)]
    assert sum(weak) == 4
    assert not any(estimator.on_votes((0, 5)).accuracies[0] > 0 for _ in range(10))


def test_share_that_goes_unseen_is_as_sure_as_its_own_samples_are_many() -> None:
    def edge(counts: int, hidden: int) -> float:
        """The share of the class that may go unseen, in steps of a hundredth."""
        row = tuple((1 + each // (hidden // 100)) / 200 for each in range(hidden))
        peek = Peek(GOOD.confusion, GOOD.recall, hidden=(row, row))
        classes = Classes(
            WEAK_STRONG, counts=(counts, counts), recall_floors=(0, 0.8), peek=peek, prior="even"
        )
        return Estimator(classes, ()).unseen[1][0]

    assert edge(counts=1000, hidden=100) < edge(counts=1000, hidden=1000)
    assert edge(counts=100, hidden=1000) < edge(counts=1000, hidden=1000)


def test_nothing_is_short_circuited_before_frequencies_are_known() -> None:
    estimator = Estimator(Classes(WEAK_STRONG, peek=GOOD), ())
    worths = [estimator.on_votes((5, 0)).label_accuracy for _ in range(100)]
    assert worths[:40] == [0.0] * 40
    assert min(worths[60:]) > 0.9


TORN = Classes(((0.98, 0.2), (0.7, 0.9)), recall_floors=(0.9, 0.8), peek=GOOD, prior="even")
"""Each floor is kept by one of the variants, both by none."""


def test_where_no_variant_keeps_all_floors_the_one_that_misses_by_least_runs() -> None:
    estimator = Estimator(TORN, ())
    assert [each > 0 for each in estimator.profiled.accuracies] == [False, True]
    assert [each > 0 for each in estimator.on_votes((2, 3)).accuracies] == [False, True]


def test_what_misses_a_recall_floor_by_least_still_reaches_the_accuracy_floor() -> None:
    floored = Estimator(TORN, (0.95, 0.75), accuracy_floor=0.9)
    assert [each > 0 for each in floored.profiled.accuracies] == [True, False]


def test_floor_that_no_variant_is_sure_to_keep_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"recall_floors\[1\]=0\.95: no variant is sure"):
        check_classes("", Classes(WEAK_STRONG, recall_floors=(0, 0.95)), 2)


def test_recalls_of_few_samples_are_trusted_less() -> None:
    few = Classes(((0.9,),), counts=(10,))
    many = Classes(((0.9,),), counts=(1000,))
    assert lower_recall(few, 0, 0) < lower_recall(many, 0, 0) < 0.9
    assert lower_recall(Classes(((0.9,),)), 0, 0) == 0.9


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (Classes(((0.5, 0.5),)), "recall=1: must have a row for each of 2"),
        (Classes(((0.5, 0.5), (0.5,))), "must hold one value for each of 2 classes"),
        (Classes(WEAK_STRONG, weights=(1,)), r"weights=\[1\]: must hold one value for each of 2"),
        (Classes(WEAK_STRONG, prior="guess"), "prior='guess': must be one of online"),
        (Classes(WEAK_STRONG, prior=(1, 0)), "must be 2 weights above 0"),
        (Classes(WEAK_STRONG, peek=Peek(((1.0,),), (1.0,))), "confusion=1: must have 2 rows"),
    ],
)
def test_classes_that_cannot_be_are_refused(classes: Classes, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_classes("", classes, 2)


# Penalties


def test_penalties_of_the_paper() -> None:
    assert step(0.001) == 1
    assert (linear(0.25), linear(2.0)) == (0.25, 1)
    assert sigmoid(0.5) == 0.5
    assert sigmoid(0.25) == pytest.approx(1 / (1 + (0.25 / 0.75) ** -3))
    assert sigmoid(1.0) == 1


def gentle(lateness: float) -> float:
    """A penalty of a user's own."""
    return 1 - exp(-lateness)


def falling(lateness: float) -> float:
    return 1 - lateness


def test_penalty_by_import_path() -> None:
    assert load_penalty("penalty", f"{__name__}:gentle") is gentle
    with pytest.raises(ConfigError, match="must rise within 0 to 1"):
        load_penalty("penalty", f"{__name__}:falling")
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_penalty("penalty", "no_such_module:penalty")
    with pytest.raises(ConfigError, match="must be step, linear, sigmoid or module:function"):
        load_penalty("penalty", "steep")


def test_sure_looks_at_digits_are_answers() -> None:
    pytest.importorskip("faiss")
    from fermata.deployments.models.digits import held_out, training_data
    from fermata.deployments.sneakpeek.building import build_model

    model = build_model(*training_data())
    images, labels = held_out()
    # The most accurate variant's own recalls, as its card tells them.
    best = (1.0, 0.9841, 1.0, 0.9828, 1.0, 0.9773, 1.0, 1.0, 0.9773, 0.9831)
    estimator = Estimator(Classes((best,), peek=model.peek), (0.9899,))
    rows = np.random.default_rng(3).integers(0, len(images), 1000)
    votes = model.index.votes(images[rows])
    right: list[bool] = []
    for each, true in zip(votes.tolist(), labels[rows].tolist(), strict=True):
        found = estimator.on_votes(each)
        if found.label_accuracy > max(found.accuracies):
            right.append(found.label == true)
    assert len(right) >= 0.8 * len(rows)
    assert np.mean(right) >= 0.97


def test_recall_on_few_samples_is_not_taken_for_certain() -> None:
    certain = Classes(((1.0, 0.0),), counts=(9, 19))
    assert measured_recalls(certain) == ((pytest.approx(0.95), pytest.approx(0.025)),)
    assert measured_recalls(Classes(((1.0, 0.5),))) == ((1.0, 0.5),)
