"""Calls of a pipeline's stages, as a function of the user's makes them."""

from collections.abc import Awaitable
from typing import Any, Protocol


class StageLostError(Exception):
    """A call of a stage has no result. A function may go on without it: the answer is marked as
    partial then. Otherwise its query is refused for the same reason."""

    def __init__(self, stage: str, reason: str, message: str = "") -> None:
        super().__init__(message or f"stage {stage!r}: {reason}")
        self.stage = stage
        self.reason = reason
        """As in metrics: `late`, `window`, `failed`, `lost` and so on."""


class StageCalls(Protocol):
    """The second argument of a pipeline's function."""

    Lost: type[StageLostError]

    def __call__(self, name: str, given: Any = None) -> Awaitable[Any]:
        """The result of a stage; `given` is an array, a mapping of names to arrays, the result of
        another call, or the function's first argument, which it is where it is left out."""
