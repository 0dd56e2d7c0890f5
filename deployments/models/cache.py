"""Files made once and shared by every process on the machine: file lock, atomic rename."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Folder of cached files: `$XDG_CACHE_HOME/fermata`, or `~/.cache/fermata`."""
    given = environment.get("XDG_CACHE_HOME", "")
    # The XDG specification has a relative path ignored.
    base = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return base / "fermata"


def cached(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, made by `make(temporary path)` where absent; of several processes, one makes it.

    A reader never sees a half-written file, also when the maker is killed. The lock dies with its
    process, and the file gets its name only when it is whole. Raises OSError if the folder is not
    writable.
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
