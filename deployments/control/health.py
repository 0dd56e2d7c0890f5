"""How far a start is, why it failed, and whether to try it again."""

import asyncio
from collections.abc import Iterable

from fermata.deployments.specs.backend import LOADED
from fermata.foundation.errors import ConfigError


def cause_of(error: BaseException) -> BaseException:
    """The original error, where Ray has wrapped it on its way here."""
    return getattr(error, "cause", None) or error


def progress_of(starting: asyncio.Task[None]) -> tuple[str, str]:
    """(`loading`, ``), (`ready`, ``) or (`failed`, why)."""
    if not starting.done():
        return "loading", ""
    error = starting.exception()
    return ("failed", str(cause_of(error))) if error is not None else ("ready", "")


def step_left(steps: Iterable[str]) -> str:
    """The step of a backend that is still being loaded, or that all are."""
    return next((each for each in steps if each != LOADED), LOADED)


def check_start(starting: asyncio.Task[None]) -> None:
    """Raise what a start has died of, so that Serve tries again; not what only the operator can
    mend, which would fail in the same way: that is told by the control plane."""
    error = starting.exception() if starting.done() else None
    if error is not None and not isinstance(cause_of(error), ConfigError):
        raise error
