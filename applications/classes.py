"""Classes of an application's requests, as a file declares them."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from fermata.foundation.refusals import check_fraction, check_positive, refuse
from fermata.foundation.sections import (
    Fraction,
    NotNegative,
    Served,
    Simulated,
    Time,
    Whole,
    keys,
    read_section,
    write_section,
)
from fermata.foundation.units import seconds
from fermata.foundation.validation import Fields, number
from fermata.router.policies.sneakpeek.classes import PRIORS

LookOn = Literal["auto", "frontend", "backend"]
Steps = tuple[tuple[int, tuple[float, ...]], ...]
"""(from, share of each class), by time from the end of the warm-up."""


@dataclass(frozen=True, slots=True)
class PeekOptions:
    """A SneakPeek model that simulations make up."""

    accuracy: Fraction | None = None
    """Share of right votes, the same for every class; or give `confusion`."""
    confusion: tuple[tuple[NotNegative, ...], ...] = ()
    """Shares of votes: a row for each true class, a column for each voted one."""
    votes: Whole = 1
    """Votes on one request; 0: there are none."""
    delay_ns: Time = 0
    """From a request's arrival to its votes."""


class PeekForm:
    """A SneakPeek model's file, or one that simulations make up."""

    takes = "text, or a section where simulated"

    def read(self, row: Fields, key: str) -> str | PeekOptions:
        value = row.data[key]
        if isinstance(value, dict):
            return read_section(PeekOptions, row.inner(key, keys(PeekOptions)))
        return "" if value is None else row.text(key)

    def write(self, value: Any) -> object:
        return value if isinstance(value, str) else write_section(value)


class PriorForm:
    """A word, or Dirichlet weights."""

    takes = "`online`, `even`, `jeffreys` or list of number > 0"

    def read(self, row: Fields, key: str) -> str | tuple[float, ...]:
        value = row.data[key]
        if not isinstance(value, list | tuple):
            return row.choice(key, PRIORS)
        weights = tuple(number(row.name(key), each) for each in value)
        for each in weights:
            check_positive(row.name(key), each)
        return weights

    def write(self, value: Any) -> object:
        return value if isinstance(value, str) else list(value)


class FrequencyForm:
    """Shares of classes, for the whole run or step by step."""

    takes = "list of shares, or of {from_s, frequencies}"

    def read(self, row: Fields, key: str) -> Steps:
        given = row.items(key)
        if given and isinstance(given[0], dict):
            steps = [
                (seconds(step.number("from_s", 0)), tuple(step.numbers("frequencies")))
                for step in row.rows(key, ("from_s", "frequencies"))
            ]
        else:
            steps = [(0, tuple(row.numbers(key)))] if given else []
        for _, shares in steps:
            for share in shares:
                check_fraction(row.name(key), share)
        for before, after in pairwise(steps):
            if after[0] <= before[0]:
                refuse(row.name(key), after[0] / 1e9, "from_s must rise from step to step")
        return tuple(steps)

    def write(self, value: Any) -> object:
        return [{"from_s": at_ns / 1e9, "frequencies": list(shares)} for at_ns, shares in value]


@dataclass(frozen=True, slots=True)
class ClassesOptions:
    """How an application's classes count, and what looks at its requests. Every variant then needs
    `recall`, of its own or of its profile."""

    sneakpeek: Annotated[str | PeekOptions, PeekForm()] = ""
    """SneakPeek model that requests are looked at with: a file of `fermata sneakpeek build`, or
    `digits` for the embedded digits. Simulations may make one up."""
    data: Served[str] = ""
    """The labelled data it must have been built from; refused where it was not."""
    look_on: Served[LookOn] = "auto"
    """Where requests are looked at: `frontend`, on one of its cores; `backend`, beside the batches
    there; `auto`, on backends with `device: cuda` where the embedding is a torch network."""
    weights: tuple[NotNegative, ...] = ()
    """Worth of a right answer, by class; 1 where absent."""
    recall_floors: tuple[Fraction, ...] = ()
    """The least recall that answers must have, by class; 0 where absent."""
    prior: Annotated[str | tuple[float, ...], PriorForm()] = "online"
    """Class frequencies: estimated from the stream, even, or Dirichlet weights on raw votes."""
    frequencies: Simulated[Annotated[Steps, FrequencyForm()]] = ()
    """How often each class comes; equally often where absent."""
    samples: Simulated[str] = ""
    """Real requests to draw from: an .npz of `labels`, `votes` and `right`."""
