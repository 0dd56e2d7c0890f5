"""Files made once and shared by every process on the machine: file lock, atomic rename."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where made files live: `$XDG_CACHE_HOME/fermata`, or `~/.cache/fermata`."""
    given = environment.get("XDG_CACHE_HOME", "")
    # The XDG specification tells readers to ignore a relative path.
    base = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return base / "fermata"


def cached(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, made by `make(temporary path)` where absent; of several processes, one makes it.

    A reader never sees a half-written file, also when the maker is killed: the lock dies with its
    process, and the file gets its name only when it is whole. Raises OSError where the folder
    cannot be written.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        os.close(handle)
        temporary = Path(name)
        try:
            make(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return path
