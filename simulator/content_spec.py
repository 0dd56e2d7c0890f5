"""What requests of an application hold: class frequencies, and how well somebody can peek."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentSpec:
    """Synthetic content. Votes are drawn from the SneakPeek model's own confusion matrix."""

    frequencies: tuple[tuple[int, tuple[float, ...]], ...]
    """(from, share of each class), by time from the end of the warm-up."""
    votes: int = 5
    """Of the SneakPeek model on one request; 0: nobody peeks."""
    delay_ns: int = 0
    """From a request's arrival to its evidence."""
