"""Class frequencies learnt from looks: false alarms, delays of changes, and rare classes."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure
from fermata.router.policies.sneakpeek.change_test import ChangeTest
from fermata.router.policies.sneakpeek.classes import Classes, Peek
from fermata.router.policies.sneakpeek.estimator import Estimator

Shares = NDArray[np.float64]

COUNTS = (2, 10, 100, 1000)
RARE = ((1 / 100, 0.03), (1 / 1000, 0.001))
"""Share of the rare class, and how often looks at others name it."""
WEAK_STRONG = ((0.999, 0.0), (0.98, 0.95))
"""Recalls of a variant that never finds the rare class, and of one that does."""


def streams(count: int) -> tuple[Shares, Shares]:
    """Even shares, and shares that fall with the number of the class."""
    falling = 1 / np.arange(1, count + 1)
    return np.full(count, 1 / count), falling / falling.sum()


def false_alarms(quick: bool) -> Iterator[Figure]:
    """On steady streams: the most of both kinds of shares."""
    requests = 10_000 if quick else 100_000
    for count in COUNTS:
        rng = np.random.default_rng([41, count])
        alarms: list[int] = []
        for shares in streams(count):
            test = ChangeTest(count)
            named = rng.choice(count, requests, p=shares).tolist()
            alarms.append(sum(test.observe(each) is not None for each in named))
        name = f"false alarms in {requests} steady requests of {count} classes"
        yield Figure(name, max(alarms), "", requests / 10_000, at_most=True)


def delays(quick: bool) -> Iterator[Figure]:
    """Requests until a change of half of the mass is found: half of the classes come no more."""
    seeds = 4 if quick else 20
    for count in COUNTS:
        found: list[int] = []
        for seed in range(seeds):
            rng = np.random.default_rng([43, count, seed])
            before = np.full(count, 1 / count)
            after = np.where(rng.permutation(count) < count / 2, 2 / count, 0.0)
            test = ChangeTest(count)
            for each in rng.choice(count, 10_000, p=before).tolist():
                test.observe(each)
            after_change = rng.choice(count, 3000, p=after).tolist()
            found.append(
                next(
                    (at for at, each in enumerate(after_change, 1) if test.observe(each)),
                    len(after_change),
                )
            )
        most = max(found)
        name = f"half of {count} classes come no more: requests until it shows (most {most})"
        yield Figure(name, float(np.median(found)), "", 300, at_most=True)


def rare_classes(quick: bool) -> Iterator[Figure]:
    """Learnt over true share of a rare class, and how much less it is found than if it were known.

    Looks are five votes for one class; a look at the rare class is right 9 times in 10."""
    requests = 20_000 if quick else 100_000
    for rare, wrong in RARE:
        rng = np.random.default_rng([47, round(1 / rare)])
        peek = Peek(((1 - wrong, wrong), (0.1, 0.9)), (1 - wrong, 0.9), sharpness=0.2)
        estimator = Estimator(Classes(WEAK_STRONG, peek=peek), ())
        true = np.array([1 - rare, rare])
        labels = (rng.random(requests) < rare).astype(int)
        named = (rng.random(requests) < np.array([wrong, 0.9])[labels]).astype(int)
        ours, knowing = [], []
        for label, each in zip(labels.tolist(), named.tolist(), strict=True):
            votes = (0.0, 5.0) if each else (5.0, 0.0)
            worths = estimator.on_votes(votes).accuracies
            if label:
                best = np.array(WEAK_STRONG) @ (true * estimator.likelihoods(votes))
                ours.append(WEAK_STRONG[int(worths[1] > worths[0])][1])
                knowing.append(WEAK_STRONG[int(best[1] > best[0])][1])
        told = f"class of 1 in {1 / rare:.0f}, looks at others wrong {wrong:.1%}"
        off = float(estimator.frequencies.settled[1]) / rare
        yield Figure(
            f"{told}: learnt share {off:.2f} of the true one, off by a factor of",
            max(off, 1 / off),
            "",
            2.0,
            at_most=True,
        )
        lost = 100 * (float(np.mean(knowing)) - float(np.mean(ours)))
        name = f"{told}: recall below that of knowing ({np.mean(knowing):.1%})"
        yield Figure(name, lost, "points", 5.0, at_most=True)
