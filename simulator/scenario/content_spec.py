"""An application's `classes` in a simulation: what requests hold, and how well a model peeks."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fermata.applications.classes import ClassesOptions, PeekOptions, Steps
from fermata.applications.content import ContentSpec, Samples
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.profiles.profile import Profile
from fermata.router.policies.sneakpeek.classes import Classes, Matrix, Peek, check_classes


def resolve_content(
    where: str, given: ClassesOptions, variants: Sequence[Profile]
) -> tuple[Classes, ContentSpec]:
    """Classes as the policy sees them, and content as it is drawn, every value checked."""
    for variant in variants:
        if not variant.recall:
            refuse(where, variant.name, "needs recall, a fraction for each class")
    count, counts = len(variants[0].recall), variants[0].counts
    if given.sneakpeek and isinstance(given.sneakpeek, str):
        rule = "is read by `fermata` commands alone; give accuracy or confusion here"
        refuse(f"{where}.sneakpeek", given.sneakpeek, rule)
    peek = given.sneakpeek if isinstance(given.sneakpeek, PeekOptions) else None
    confusion = () if peek is None else _confusion(f"{where}.sneakpeek", peek, count)
    classes = Classes(
        recall=tuple(variant.recall for variant in variants),
        counts=counts if len(counts) == count else (),
        weights=given.weights,
        recall_floors=given.recall_floors,
        peek=Peek(confusion, tuple(each[at] for at, each in enumerate(confusion)))
        if confusion
        else None,
        prior=given.prior,
    )
    check_classes(f"{where}.", classes, len(variants))
    spec = ContentSpec(
        frequencies=_frequencies(where, given.frequencies, count),
        votes=peek.votes if peek is not None else 0,
        delay_ns=peek.delay_ns if peek is not None else 0,
        samples=_samples(where, given.samples, count, len(variants)) if given.samples else None,
    )
    return classes, spec


def _confusion(where: str, peek: PeekOptions, count: int) -> Matrix:
    if peek.confusion:
        for at, row in enumerate(peek.confusion):
            if len(row) <= at:
                refuse(f"{where}.confusion[{at}]", list(row), f"must hold {count} shares")
        return peek.confusion
    if peek.accuracy is None:
        refuse(f"{where}.accuracy", None, "is needed, or confusion")
    other = (1.0 - peek.accuracy) / max(1, count - 1)
    return tuple(
        tuple(peek.accuracy if true == voted else other for voted in range(count))
        for true in range(count)
    )


def _frequencies(where: str, given: Steps, count: int) -> Steps:
    steps = given or ((0, (1.0 / count,) * count),)
    for _, shares in steps:
        if len(shares) != count or sum(shares) <= 0:
            refuse(f"{where}.frequencies", list(shares), f"must be {count} shares, not all 0")
    return steps


def _samples(where: str, file: str, classes: int, variants: int) -> Samples:
    path, name = Path(file), f"{where}.samples"
    try:
        with np.load(path, allow_pickle=False) as held:
            found = Samples(held["labels"], held["votes"].astype(float), held["right"].astype(bool))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{name}={str(path)!r}: cannot be read ({error}); give an .npz with "
            "labels, votes and right"
        ) from None
    count = len(found.labels)
    if found.votes.shape != (count, classes) or found.right.shape != (count, variants):
        rule = f"votes must be [{count}, {classes}] and right [{count}, {variants}]"
        refuse(name, str(path), rule)
    if set(found.labels.tolist()) != set(range(classes)):
        refuse(name, str(path), f"must hold every class from 0 to {classes - 1}")
    return found
