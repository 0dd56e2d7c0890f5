"""Epochs of routers: each later start has a higher one, and nobody obeys a lower one again."""

RESTART_BITS = 44
"""Milliseconds since 1970 fit until the year 2527."""


def next_epoch(generation: int, wall_ms: int, last: int = 0, seat: int | None = None) -> int:
    """A number that grows with every start: of a new generation, or of the same one by Ray.

    Ray restarts an actor with the arguments it was created with, so the generation alone would
    not tell the new process from the one whose place it takes. Wall clocks may be set back: the
    highest epoch that the cluster remembers (`last`) counts too. Two routers may start at once,
    one for each `seat`, 0 or 1: the last bit tells them apart.
    """
    epoch = max((generation << RESTART_BITS) | wall_ms, last + 1)
    return epoch if seat is None else epoch + ((epoch ^ seat) & 1)
