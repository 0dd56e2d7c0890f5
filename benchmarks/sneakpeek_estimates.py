"""How far estimates of accuracy are off, on streams that stay as they are and that drift."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.sneakpeek_setting import Prepared, Stream
from fermata.deployments.sneakpeek.calibration import calibrate
from fermata.router.policies.sneakpeek.classes import Classes, Peek
from fermata.router.policies.sneakpeek.estimator import Estimator

Errors = NDArray[np.float64]


def profiled_errors(prepared: Prepared, stream: Stream) -> Errors:
    """Of the profiled accuracy, for each request: the mean over variants."""
    recall = np.array(prepared.classes.recall)
    return np.asarray(np.abs(recall.mean(axis=1)[:, None] - recall[:, stream.labels]).mean(axis=0))


def estimate_errors(
    prepared: Prepared, stream: Stream, prior: str | tuple[float, ...] = "online"
) -> Errors:
    """Of the estimate made of each request's votes, in order. As in section 6.3.1 a variant's true
    accuracy on a request is its recall of the true class."""
    estimator = Estimator(replace(prepared.classes, prior=prior), ())
    recall = np.array(prepared.classes.recall)
    errors = np.zeros(len(stream.labels))
    for row, (label, votes) in enumerate(
        zip(stream.labels.tolist(), stream.votes.tolist(), strict=True)
    ):
        estimate = estimator.on_votes(votes)
        errors[row] = np.abs(np.array(estimate.accuracies) - recall[:, label]).mean()
    return errors


def changed(frequencies: Sequence[float]) -> tuple[float, ...]:
    """Other class frequencies: the rarest class becomes the most frequent."""
    count = len(frequencies)
    if max(frequencies) - min(frequencies) < 0.01:
        return (0.7, *((0.3 / (count - 1),) * (count - 1)))
    return tuple(reversed(frequencies)) if count > 2 else (0.5, 0.5)


def guessing_peek(
    prepared: Prepared, accuracy: float, labels: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Votes of a SneakPeek model that names the true class with that probability, and else any
    other one (section 6.3.2)."""
    count = len(prepared.task.classes)
    off = rng.integers(1, count, len(labels))
    named = np.where(rng.random(len(labels)) < accuracy, labels, (labels + off) % count)
    return np.eye(count, dtype=np.float32)[named]


def guessing_classes(prepared: Prepared, accuracy: float, rng: np.random.Generator) -> Classes:
    """What is known of an application with such a SneakPeek model, calibrated like any other."""
    count = len(prepared.task.classes)
    labels = np.repeat(np.arange(count), 600)
    votes = guessing_peek(prepared, accuracy, labels, rng)
    return replace(prepared.classes, peek=calibrate(votes, labels))


def spent_us(count: int, requests: int = 200, variants: int = 4, neighbours: int = 10) -> float:
    """CPU time of making one estimate with so many classes: the median of some requests."""
    rng = np.random.default_rng(37)
    confusion = 0.7 * np.eye(count) + 0.3 * rng.dirichlet(np.full(count, 0.1), count)
    rows = tuple(map(tuple, np.minimum(confusion, 1.0).tolist()))
    recall = tuple(map(tuple, rng.uniform(0.5, 1.0, (variants, count)).tolist()))
    estimator = Estimator(Classes(recall, peek=Peek(rows, recall[0])), ())
    spent: list[int] = []
    for label in rng.integers(0, count, requests).tolist():
        votes = rng.multinomial(neighbours, confusion[label] / confusion[label].sum()).tolist()
        began = time.process_time_ns()
        estimator.on_votes(votes)
        spent.append(time.process_time_ns() - began)
    return float(np.median(spent)) / 1e3
