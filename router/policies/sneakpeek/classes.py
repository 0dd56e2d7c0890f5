"""An application's classes: recalls, their weights, and the model that peeks at requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from fermata.foundation.refusals import check_fraction, check_number, refuse

Matrix = tuple[tuple[float, ...], ...]
PRIORS = ("online", "jeffreys", "even")
JEFFREYS = 0.5
LOOK = "sneakpeek"
"""In place of a variant: a look was the answer."""


@dataclass(frozen=True, slots=True)
class Peek:
    """How far to trust the SneakPeek model's votes; measured on data it was not built from."""

    confusion: Matrix
    """[true class][voted class]: how votes for a request of that class are shared out."""
    recall: tuple[float, ...]
    """How often its own answer is right, by class: profiled, for the short circuit."""
    sharpness: float = 1.0
    """How many independent votes one vote is worth: neighbours agree for one reason, not k."""
    hidden: Matrix = ()
    """[true class]: probabilities, ascending, that it gave to the true class with all classes
    equally frequent; tells how often a class goes unseen."""
    named: Matrix = ()
    """[true class][class with most votes]: frequencies are learnt by it, since it holds however
    votes depend on one another. Empty where unknown; then they are learnt by `confusion`."""


@dataclass(frozen=True, slots=True)
class Classes:
    """One application's classes."""

    recall: Matrix
    """[variant][class]."""
    counts: tuple[int, ...] = ()
    """Samples of each class behind `recall`; empty where unknown, and then recalls are exact."""
    weights: tuple[float, ...] = ()
    """The worth of a right answer, by class; 1 where empty."""
    recall_floors: tuple[float, ...] = ()
    """The least recall that answers must have, by class; 0 where empty."""
    peek: Peek | None = None
    prior: str | tuple[float, ...] = "online"
    """`online`: frequencies estimated from the stream; `even`; `jeffreys`: the paper's default, on
    raw votes; or Dirichlet weights of an expert, on raw votes."""

    @property
    def count(self) -> int:
        return len(self.recall[0])


def check_classes(where: str, classes: Classes, variants: int) -> None:
    """Refuse what cannot be, in the operator's words."""
    if len(classes.recall) != variants:
        refuse(f"{where}recall", len(classes.recall), f"must have a row for each of {variants}")
    count = classes.count
    for row in classes.recall:
        _check_row(f"{where}recall", row, count)
    for name in ("weights", "recall_floors"):
        given = getattr(classes, name)
        if given and len(given) != count:
            refuse(f"{where}{name}", list(given), f"must hold one value for each of {count}")
        for value in given:
            check_number(f"{where}{name}", value)
    for number, floor in enumerate(classes.recall_floors):
        best = max(lower_recall(classes, variant, number) for variant in range(variants))
        if floor > best:
            rule = f"no variant is sure to reach it, the best {best:.3f}; lower it or add a variant"
            refuse(f"{where}recall_floors[{number}]", floor, rule)
    if isinstance(classes.prior, str) and classes.prior not in PRIORS:
        refuse(f"{where}prior", classes.prior, f"must be one of {', '.join(PRIORS)}, or weights")
    if not isinstance(classes.prior, str) and (
        len(classes.prior) != count or min(classes.prior) <= 0
    ):
        refuse(f"{where}prior", list(classes.prior), f"must be {count} weights above 0")
    if classes.peek is not None:
        if len(classes.peek.confusion) != count:
            refuse(f"{where}confusion", len(classes.peek.confusion), f"must have {count} rows")
        for row in (*classes.peek.confusion, *classes.peek.named):
            _check_row(f"{where}confusion", row, count)


def _check_row(where: str, row: Sequence[float], count: int) -> None:
    if len(row) != count:
        refuse(where, list(row), f"must hold one value for each of {count} classes")
    for value in row:
        check_fraction(where, value)


def lower_recall(classes: Classes, variant: int, number: int) -> float:
    """A recall less its standard error: what a floor may be promised on."""
    recall = classes.recall[variant][number]
    if not classes.counts:
        return recall
    return max(0.0, recall - standard_error(recall, classes.counts[number]))


def measured_recalls(classes: Classes) -> Matrix:
    """Recalls to be expected of requests: one of 1 on few samples is none on all others.

    Where the samples behind them are not counted, they are taken to be as many as those of the
    look: the two are weighed against one another. A look without any leaves them as they are.
    """
    hidden = () if classes.peek is None else classes.peek.hidden
    counts = classes.counts or tuple(len(each) for each in hidden)
    if len(counts) != classes.count:
        return classes.recall
    return tuple(
        tuple(
            (share * count + JEFFREYS) / (count + 2 * JEFFREYS) if count else share
            for share, count in zip(row, counts, strict=True)
        )
        for row in classes.recall
    )


def shortfalls(classes: Classes, variant: int) -> list[float]:
    """By class: by how much a variant may miss its recall floor; 0 where it keeps it."""
    floors = classes.recall_floors or (0.0,) * classes.count
    return [
        max(0.0, floor - lower_recall(classes, variant, number))
        for number, floor in enumerate(floors)
    ]


def standard_error(share: float, count: int) -> float:
    """Standard error of a share measured on so many samples."""
    # Laplace's estimate, or a share of 1 on few samples would have no error at all.
    likely = (share * count + 1) / (count + 2)
    return sqrt(likely * (1 - likely) / (count + 2))


def sharpened(recall: Sequence[float], theta: Sequence[float]) -> float:
    """Eq. 9: the accuracy of a variant on data of these class frequencies."""
    return sum(share * right for share, right in zip(theta, recall, strict=True))
