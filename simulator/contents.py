"""Contents of every request of a run, and whether each variant would answer it right."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fermata.applications.application import Application
from fermata.applications.content import ContentSpec
from fermata.simulator.arrivals import Arrivals
from fermata.simulator.scenario.scenario import Scenario

Table = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Contents:
    """One row a request, in order of arrival; drawn, or taken from real data and classifiers."""

    label: npt.NDArray[np.int64]
    """True class."""
    right: Table
    """[request, the variant's place in its application]: whether it would answer right."""
    votes: Sequence[tuple[float, ...] | None]
    """Votes of the SneakPeek model, by class; None: no evidence. Empty: nobody peeks."""
    delay_ns: npt.NDArray[np.int64]
    """From a request's arrival to its evidence."""


def draw_contents(scenario: Scenario, arrivals: Arrivals) -> Contents | None:
    """Contents as the scenario's applications describe them; None where none does."""
    if not any(application.content for application in scenario.applications):
        return None
    count = len(arrivals.at_ns)
    width = max(len(application.variants) for application in scenario.applications)
    found = Contents(
        np.full(count, -1), np.ones((count, width), np.bool_), [None] * count, np.zeros(count, int)
    )
    votes: list[tuple[float, ...] | None] = [None] * count
    for number, application in enumerate(scenario.applications):
        spec = application.content
        if spec is None:
            continue
        rng = np.random.default_rng([scenario.seed, number, 7])
        rows = np.flatnonzero(arrivals.application == number)
        labels = _draw_labels(spec, arrivals.at_ns[rows] - scenario.warmup_ns, rng)
        found.label[rows] = labels
        found.delay_ns[rows] = spec.delay_ns
        right, drawn = _draw_rest(application, labels, rng)
        found.right[rows, : right.shape[1]] = right
        for row, each in zip(rows.tolist(), drawn, strict=True):
            votes[row] = each
    return replace(found, votes=votes)


def _draw_labels(
    spec: ContentSpec, at_ns: npt.NDArray[np.int64], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    labels = np.zeros(len(at_ns), np.int64)
    for from_ns, shares in spec.frequencies:
        later = at_ns >= from_ns if from_ns > 0 else np.ones(len(at_ns), np.bool_)
        drawn = rng.choice(len(shares), len(at_ns), p=np.array(shares) / sum(shares))
        labels[later] = drawn[later]
    return labels


def _draw_rest(
    application: Application, labels: npt.NDArray[np.int64], rng: np.random.Generator
) -> tuple[Table, list[tuple[float, ...] | None]]:
    """For requests of these classes: which variants answer right, and the votes."""
    spec, classes = application.content, application.classes
    assert spec is not None
    assert classes is not None
    if spec.samples is not None:
        chosen = np.zeros(len(labels), np.int64)
        for each in range(classes.count):
            asked = labels == each
            chosen[asked] = rng.choice(
                np.flatnonzero(spec.samples.labels == each), int(asked.sum())
            )
        found = [tuple(row) for row in spec.samples.votes[chosen].tolist()]
        return spec.samples.right[chosen], [*found]
    recall = np.array(classes.recall).T[labels]
    right = rng.random(recall.shape) < recall
    if classes.peek is None or spec.votes == 0:
        return right, [None] * len(labels)
    shares = np.array(classes.peek.confusion)[labels]
    shares = shares / shares.sum(axis=1, keepdims=True)
    drawn = rng.multinomial(spec.votes, shares).astype(float).tolist()
    return right, [tuple(row) for row in drawn]
