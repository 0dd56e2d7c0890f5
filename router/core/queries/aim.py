"""Batches that pipelines ask of a source."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchAim:
    """A stage's batches. They take the place of what a source would learn for itself."""

    size: int
    """The target: with so many requests, a batch is held no longer."""
    size_max: int
    """No batch is larger."""
    window: int
    """A head of the queue must leave room for so many, or is dropped."""
    ahead_ns: int
    """Taken off the key of its bids: run times of the stages before. So queries are served in the
    order of their own deadlines, whichever stage they are in."""
