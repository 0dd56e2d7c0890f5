"""Conditions of stages (`when`): which results go on to a stage, as far as names go."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from fermata.deployments.config.base import Section

NUMBERS = "classes"
"""Where a detector says nothing else, the output with the class of each box."""
BOUNDS = ("classes", "score_min", "score_below", "found_min", "found_max")
"""Keys of which a condition has at least one."""


class WhenConfig(Section):
    """A stage runs only where an earlier one has found this. Detectors find boxes, and all others
    their top class."""

    stage: str = ""
    """Stage that is asked; empty: the one whose result comes. It stands before this one on every
    way. Beyond a join, all of its results count together."""
    classes: list[str | int] = []
    """Only these count, by name or number; empty: all."""
    score_min: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Only scores from it on count."""
    score_below: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Only scores below it count."""
    found_min: Annotated[int, Field(ge=0)] | None = None
    """So many are needed at least; 1, or 0 where there is a `found_max`."""
    found_max: Annotated[int, Field(ge=0)] | None = None
    """So many at most; 0: nothing of the kind."""
    scores: str = ""
    """Output with the scores; empty: `scores` of a detector, or the fifth number of its boxes, and
    the first output of others."""
    numbers: str = NUMBERS
    """Output with the class of each box; where there is none, the sixth number of a box."""

    @model_validator(mode="after")
    def _bounds(self) -> "WhenConfig":
        if all(getattr(self, key) in (None, []) for key in BOUNDS):
            raise ValueError(f"say {', '.join(BOUNDS[:-1])} or {BOUNDS[-1]}")
        if self.at_least == 0 and self.found_max is None:
            raise ValueError("found_min=0 always holds; say found_max too, or leave `when` out")
        low, high = self.score_min, self.score_below
        if low is not None and high is not None and low >= high:
            raise ValueError(f"score_below={high} must be above score_min={low}")
        if self.found_max is not None and self.at_least > self.found_max:
            raise ValueError(
                f"found_max={self.found_max} must be at least found_min={self.at_least}"
            )
        return self

    @property
    def at_least(self) -> int:
        """So many are needed."""
        if self.found_min is None:
            return 1 if self.found_max is None else 0
        return self.found_min


def check_condition(
    at: str, when: WhenConfig | None, known: Sequence[str], above: Sequence[str]
) -> None:
    """Refuse a condition that asks a stage which need not have run; `known`: those that have, and
    `above`: all that stand above it."""
    if when is None or not when.stage or when.stage in known:
        return
    fault = "does not stand before it on every way" if when.stage in above else "is unknown"
    raise ValueError(f"{at}: when.stage={when.stage!r} {fault}; one of {', '.join(known)}")


def sure_before(
    before: Sequence[str], is_join: bool, known: Mapping[str, Sequence[str]]
) -> list[str]:
    """Stages that have results whenever one behind these stages may run, in their order; `known`:
    the same of all stages above. A join waits for all of them."""
    ways = [[*known[each], each] for each in before]
    every = list(dict.fromkeys(name for way in ways for name in way))
    if is_join:
        return every
    return [name for name in every if all(name in way for way in ways)]
