"""The page to look at: one file, no build, nothing from the internet."""

from functools import cache
from pathlib import Path


@cache
def page() -> str:
    """The whole of it; it asks `frame` for what to show, once a second."""
    return Path(__file__).with_name("index.html").read_text(encoding="utf-8")
