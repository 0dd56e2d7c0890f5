"""Another process of a test, which lives until it is told to end."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def child(program: str, *arguments: object, says: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs this program, from the line on that it prints when it is ready."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{says}\n"
        yield process
        process.kill()
