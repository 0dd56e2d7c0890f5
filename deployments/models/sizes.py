"""Sizes of one model: `@SIZE` after its name, and weights that sizes and buckets share."""

from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from fermata.foundation.errors import ConfigError

T = TypeVar("T")
DIGITS_MAX = 5

_HELD: WeakValueDictionary[Hashable, object] = WeakValueDictionary()
"""Networks of this process that some model still uses, by what they were loaded from."""


def split_size(model: str) -> tuple[str, int | None]:
    """The name of a model or file without its size, and that: `a:b@160` is `a:b` and 160."""
    name, at, size = model.rpartition("@")
    if at and name and size.isdecimal() and 0 < len(size) <= DIGITS_MAX and int(size):
        return name, int(size)
    return model, None


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """What `make` gives, made once for all that use it at the same time."""
    found = _HELD.get(key)
    if found is None:
        found = make()
        # One that has to be closed would be closed with the first that no longer uses it.
        if not hasattr(found, "close"):
            # Not everything can be referred to weakly; such an object is made anew for each use.
            with suppress(TypeError):
                _HELD[key] = found
    return found  # type: ignore[return-value]


def shared_file(path: Path, use: Hashable, make: Callable[[], T]) -> T:
    """Read a file once for all of its sizes; one that has changed is read anew.

    `use` is the device, with whatever else makes it another object.
    """
    found = path.stat()
    key = str(path.resolve()), found.st_mtime_ns, found.st_size, use
    return shared(key, make)


def check_sides(name: str, sides: tuple[object, ...], size: int | None) -> None:
    """Refuse a size that a network was not made for; sides that are no numbers take any."""
    fixed = [side for side in sides[-2:] if isinstance(side, int) and side > 0]
    if size is not None and any(side != size for side in fixed):
        shown = "x".join(map(str, fixed))
        raise ConfigError(
            f"{name}: its pictures are {shown}, not {size}x{size}; export it with height and width "
            "that vary, or name that size"
        )
