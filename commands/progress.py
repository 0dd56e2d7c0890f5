"""A bar for work that takes long."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


def progress_bar(counted: bool = False) -> Progress:
    """A bar on standard error that is gone when done; `counted` adds how many of how many."""
    columns = [TextColumn("{task.description}"), BarColumn()]
    if counted:
        columns.append(TextColumn("{task.completed}/{task.total}"))
    # On standard error: standard output is for what a script may read.
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
