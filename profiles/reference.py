"""Profiles by reference: `TABLE/NAME` of the zoo, or `FILE#NAME` of a file of one's own."""

import os
from pathlib import Path

from fermata.foundation.refusals import refuse
from fermata.foundation.validation import Fields, fields
from fermata.profiles.profile import Profile
from fermata.profiles.store import (
    PROFILE_KEYS,
    Table,
    find,
    load_file,
    load_table,
    profile_row,
    read_profile,
)

FILE_STARTS = ("./", "../", "/", "~/")
NAMES_SHOWN = 20


def names_file(reference: str) -> bool:
    """Whether a reference is to a file, and not to the zoo."""
    return "#" in reference or reference.endswith(".json") or reference.startswith(FILE_STARTS)


def find_profile(reference: str, beside: Path | None = None, where: str = "profile") -> Profile:
    """The profile that is meant, or a ConfigError in one line.

    A path is relative to the folder `beside`, and to the current one where there is none.
    The name may be left out where the file holds one profile.
    """
    if not names_file(reference):
        return find(reference)
    path, name = _split(reference, beside)
    table = _load(reference, path, where)
    names = [profile.name for profile in table.profiles]
    if not name and len(names) > 1:
        choices = _listed([f"#{each}" for each in names])
        refuse(where, reference, f"{path} holds {len(names)} profiles; add one of {choices}")
    if name and name not in names:
        refuse(where, reference, f"{path} has no profile {name!r}; it has {_listed(names)}")
    return table.find(name or names[0])


def find_table(reference: str, beside: Path | None = None, where: str = "table") -> Table:
    """The table that is meant: of the zoo by name, or a file of one's own by path."""
    if not names_file(reference):
        return load_table(reference)
    return _load(reference, _in_folder(reference, beside), where)


def read_inline(where: str, value: object) -> Profile:
    """A profile that stands in the configuration itself, as `write_inline` gives it."""
    row: Fields = fields(f"{where}.", where, value, (*PROFILE_KEYS, "device"))
    return read_profile(row, row.text("device", ""))


def write_inline(profile: Profile) -> object:
    """The profile as plain values, so that no other machine needs its file."""
    return profile_row(profile, profile.device)


def _load(reference: str, path: Path, where: str) -> Table:
    if not os.path.isfile(path):
        refuse(where, reference, f"no file {path}; `fermata profile MODEL -o {path.name}` makes it")
    return load_file(path)


def _split(reference: str, beside: Path | None) -> tuple[Path, str]:
    """Path and name; a file whose own name holds `#` is found too."""
    parts = reference.split("#")
    for count in range(1, len(parts) + 1):
        path = _in_folder("#".join(parts[:count]), beside)
        if os.path.isfile(path):
            return path, "#".join(parts[count:])
    return _in_folder(parts[0], beside), "#".join(parts[1:])


def _in_folder(path: str, beside: Path | None) -> Path:
    own = Path.home() / path[2:] if path.startswith("~/") else Path(path)
    return own if beside is None else beside / own


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
