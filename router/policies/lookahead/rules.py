"""Limits of the policy that looks ahead, which nobody has to set."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LookaheadRules:
    """How far loads may differ before a table is solved anew, and what is learnt from."""

    load_step: float = 0.1
    """Loads are told apart by this much, as a logarithm."""
    part_step: float = 0.25
    """So are parts of the backends."""
    caution_step: float = 0.05
    dispersion: tuple[float, float] = (0.5, 16.0)
    """Bursts count as at least and at most so much."""
    moved: float = 0.75
    """Steps that a figure must have moved."""
    follow: float = 0.06
    """Change of the rate, as a logarithm, at which tables are looked at."""
    young: float = 0.4
    """The same while so few have come that the rate is a guess."""
    hold_least: float = 0.01
    """Share of the time that a request has, below which holding it is not worth a timer."""
    silence: float = 0.5
    """Share of the time since the newest request that the next one is awaited for, at least."""
    yielded: float = 0.02
    """Share of its time that a request waits for the last backends, which are left to others."""
    caution_rise: float = 0.01
    """The most that one late batch adds to the caution."""
