"""Contents of an application's requests: class frequencies, and how well somebody can peek."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fermata.foundation.check import check_fraction, refuse
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms, seconds
from fermata.foundation.validation import Fields, number
from fermata.profiles.profile import Profile
from fermata.router.policies.sneakpeek.classes import Classes, Peek, check_classes

CLASSES_KEYS = (
    "frequencies",
    "weights",
    "recall_floors",
    "prior",
    "sneakpeek",
    "samples",
)
SNEAKPEEK_KEYS = ("accuracy", "confusion", "votes", "delay_ms")


@dataclass(frozen=True, slots=True)
class Samples:
    """Real content: labelled samples that requests are drawn from."""

    labels: npt.NDArray[np.int64]
    votes: npt.NDArray[np.float64]
    """[sample, class]: of the SneakPeek model."""
    right: npt.NDArray[np.bool_]
    """[sample, variant]: whether it answers right."""


@dataclass(frozen=True, slots=True)
class ContentSpec:
    """How content is drawn: from samples where there are some; else votes come from the SneakPeek
    model's confusion matrix, and right answers from recalls."""

    frequencies: tuple[tuple[int, tuple[float, ...]], ...]
    """(from, share of each class), by time from the end of the warm-up."""
    votes: int = 1
    """Time of the SneakPeek model on one request; 0: nobody peeks."""
    delay_ns: int = 0
    """From a request's arrival to its evidence."""
    samples: Samples | None = None


def read_content(row: Fields, variants: Sequence[Profile]) -> tuple[Classes, ContentSpec]:
    """An application's `classes`, every value checked."""
    for variant in variants:
        if not variant.recall:
            refuse(row.where.rstrip("."), variant.name, "needs recall, a fraction for each class")
    count, counts = len(variants[0].recall), variants[0].counts
    peek = row.inner("sneakpeek", SNEAKPEEK_KEYS)
    confusion = _read_confusion(peek, count) if row.has("sneakpeek") else ()
    prior = row.data.get("prior", "online")
    classes = Classes(
        recall=tuple(variant.recall for variant in variants),
        counts=counts if len(counts) == count else (),
        weights=tuple(row.numbers("weights")),
        recall_floors=tuple(row.numbers("recall_floors")),
        peek=Peek(confusion, tuple(each[at] for at, each in enumerate(confusion)))
        if confusion
        else None,
        prior=tuple(row.numbers("prior")) if isinstance(prior, list) else str(prior),
    )
    check_classes(row.where, classes, len(variants))
    spec = ContentSpec(
        frequencies=_read_frequencies(row, count),
        votes=peek.integer("votes", 1) if confusion else 0,
        delay_ns=ms(peek.number("delay_ms", 0)) if confusion else 0,
        samples=_read_samples(row, count, len(variants)) if row.has("samples") else None,
    )
    return classes, spec


def _read_confusion(row: Fields, count: int) -> tuple[tuple[float, ...], ...]:
    if row.has("confusion"):
        rows = row.items("confusion")
        return tuple(
            tuple(number(row.name("confusion"), value) for value in each)
            if isinstance(each, list)
            else ()
            for each in rows
        )
    accuracy = row.fraction("accuracy")
    if accuracy is None:
        refuse(row.name("accuracy"), None, "is needed, or confusion")
    other = (1.0 - accuracy) / max(1, count - 1)
    return tuple(
        tuple(accuracy if true == voted else other for voted in range(count))
        for true in range(count)
    )


def _read_frequencies(row: Fields, count: int) -> tuple[tuple[int, tuple[float, ...]], ...]:
    given = row.items("frequencies")
    if given and isinstance(given[0], dict):
        steps = [
            (seconds(step.number("from_s", 0)), tuple(step.numbers("frequencies")))
            for step in row.rows("frequencies", ("from_s", "frequencies"))
        ]
    else:
        steps = [(0, tuple(row.numbers("frequencies")) or (1.0 / count,) * count)]
    for _, shares in steps:
        if len(shares) != count or sum(shares) <= 0:
            refuse(row.name("frequencies"), list(shares), f"must be {count} shares, not all 0")
        for share in shares:
            check_fraction(row.name("frequencies"), share)
    for before, after in pairwise(steps):
        if after[0] <= before[0]:
            refuse(row.name("frequencies"), after[0] / 1e9, "from_s must rise from step to step")
    return tuple(steps)


def _read_samples(row: Fields, classes: int, variants: int) -> Samples:
    path = Path(row.text("samples"))
    try:
        with np.load(path, allow_pickle=False) as held:
            found = Samples(held["labels"], held["votes"].astype(float), held["right"].astype(bool))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{row.name('samples')}={str(path)!r}: cannot be read ({error}); give an .npz with "
            "labels, votes and right"
        ) from None
    count = len(found.labels)
    if found.votes.shape != (count, classes) or found.right.shape != (count, variants):
        rule = f"votes must be [{count}, {classes}] and right [{count}, {variants}]"
        refuse(row.name("samples"), str(path), rule)
    if set(found.labels.tolist()) != set(range(classes)):
        refuse(row.name("samples"), str(path), f"must hold every class from 0 to {classes - 1}")
    return found
