"""Lines of our own code that run, in all threads: what leads a fuzzer without a compiler's help."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

OURS = str(Path(__file__).parents[2])
"""The folder of our code."""
NOT_LED = str(Path(__file__).parent)
"""Folder whose lines are no sign of anything new."""
Lines = set[tuple[CodeType, int]]


@contextmanager
def reached_lines() -> Iterator[Lines]:
    """A set that grows with each line that runs for the first time, here and in threads to come.

    A function whose lines have all run is not looked at again, so that known ways stay fast.
    """
    reached: Lines = set()
    led: dict[CodeType, set[int]] = {}

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            reached.add((frame.f_code, frame.f_lineno))
            led[frame.f_code].discard(frame.f_lineno)
        return on_line

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        left = led.get(code)
        if left is None:
            left = led[code] = _lines(code)
        return on_line if left else None

    before = sys.gettrace()
    sys.settrace(on_call)
    threading.settrace(on_call)
    try:
        yield reached
    finally:
        sys.settrace(before)
        threading.settrace(None)


def _lines(code: CodeType) -> set[int]:
    """Lines of a function of ours; none of anybody else's."""
    path = code.co_filename
    if not path.startswith(OURS) or path.startswith(NOT_LED):
        return set()
    return {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}
