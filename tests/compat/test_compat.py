"""Files that users have must load and mean what they meant, whatever becomes of the code.

`files` holds what was shipped, written by commands, or written by hand with as many options as
possible; `meaning` holds what each of them meant then. See `record.py` for when that may change.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from readers import READERS, names, read
from record import recorded

RELATIVE, ABSOLUTE = 1e-9, 1e-12
KEPT = [(kind, name) for kind in READERS for name in names(kind)]
meanings = cache(recorded)


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Where the two differ. New options and figures beside those of old are no difference, unless
    there were none."""
    if isinstance(before, dict) and isinstance(after, dict):
        if after and not before:
            yield f"{where}: was empty, and is {after}"
        for key, value in before.items():
            if key in after:
                yield from differences(value, after[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}: was {value!r}, and is gone"
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{where}: were {len(before)}, and are {len(after)}"
        for index, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from differences(old, new, f"{where}[{index}]")
    elif not _alike(before, after):
        yield f"{where}: was {before!r}, and is {after!r}"


def _alike(before: Any, after: Any) -> bool:
    """Floats may differ by rounding; everything else not at all."""
    kinds = {type(before), type(after)}
    if float in kinds and kinds <= {int, float}:
        return math.isclose(before, after, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return len(kinds) == 1 and bool(before == after)


@pytest.mark.parametrize(("kind", "name"), KEPT)
def test_a_kept_file_means_what_it_meant(kind: str, name: str) -> None:
    assert list(differences(meanings(kind)[name], read(kind, name))) == []


@pytest.mark.parametrize("kind", READERS)
def test_every_meaning_has_its_file(kind: str) -> None:
    assert list(meanings(kind)) == names(kind)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 2),
        (1, True),
        (0, None),
        ("a", "b"),
        (1.0, 1.0 + 1e-8),
        ({"a": 1}, {"b": 1}),
        ({"a": {}}, {"a": {"b": 1}}),
        ([1, 2], [1]),
        ([1], [1, 2]),
        ([{"a": 0.5}], [{"a": 0.6}]),
    ],
)
def test_a_difference_is_told(before: Any, after: Any) -> None:
    assert list(differences(before, after)) != []


@pytest.mark.parametrize(
    ("before", "after"),
    [(1, 1.0), (0.1 + 0.2, 0.3), ({"a": [None, "x"]}, {"a": [None, "x"], "b": 1}), ({}, {})],
)
def test_rounding_and_what_is_new_are_no_difference(before: Any, after: Any) -> None:
    assert list(differences(before, after)) == []
