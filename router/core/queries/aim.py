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
    first: bool = True
    """Queries come here one by one, as clients send them. Results of other stages come in batches.
    """
    variant: int = -1
    """It runs this one, where the source leaves a choice; -1: the one that it serves."""
    share: float = 0.0
    """Part of its requests that are run as the next says."""
    other: "BatchAim | None" = None
    """Batches of another variant."""
