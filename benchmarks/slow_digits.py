"""The embedded digits family at the pace of larger models: real answers, stretched run times.

The models themselves take microseconds, so any machine could always run the best one. Waiting does
not use the CPU, so several backends fit a small machine and keep their pace.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fermata.deployments.models import digits

PACE_MS = {"nano": (6.0, 6.0), "small": (12.0, 10.0), "xl": (45.0, 20.0)}
"""Of each member: milliseconds for each request of a batch, and for the batch."""
Array = npt.NDArray[np.float32]


def _run(model: Callable[[Any], Any], each_ms: float, batch_ms: float, batch: Array) -> Any:
    end_s = time.perf_counter() + (batch_ms + each_ms * len(batch)) / 1e3
    answers = model(batch)
    time.sleep(max(0.0, end_s - time.perf_counter()))
    return answers


def _load(name: str) -> Callable[[Array], Any]:
    return partial(_run, digits.load(name), *PACE_MS[name])


def nano() -> Callable[[Array], Any]:
    return _load("nano")


def small() -> Callable[[Array], Any]:
    return _load("small")


def xl() -> Callable[[Array], Any]:
    return _load("xl")
