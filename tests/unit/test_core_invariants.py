"""The core's asserts: each states an invariant, and a seeded bug shows that it notices."""

import ast
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import matching_bugs  # noqa: F401 - it enters its bugs when it is imported, as the next one does
import pytest
import query_bugs  # noqa: F401
from core_bugs import BUGS, Bug

import fermata.router.core

CORE = Path(fermata.router.core.__file__).resolve().parent


class Stated(NamedTuple):
    """An assert of the core."""

    module: str
    line: int
    place: str
    condition: str


def asserts_in(node: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.Assert]]:
    """Every assert below a node, with the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert):
            yield ".".join(scope), child
        named = isinstance(child, ast.ClassDef | ast.FunctionDef)
        yield from asserts_in(child, (*scope, child.name) if named else scope)


ASSERTS = {
    (path.name, line): Stated(path.name, found.lineno, place, ast.unparse(found.test))
    for path in sorted(CORE.glob("**/*.py"))
    for place, found in asserts_in(ast.parse(path.read_text()))
    for line in range(found.lineno, (found.end_lineno or 0) + 1)
}
"""By module and line."""


def tripped(bug: Bug) -> Stated:
    """The assert of the core that a bug trips."""
    with pytest.raises(AssertionError) as raised:
        bug.plant()
    last = traceback.extract_tb(raised.tb)[-1]
    assert CORE in Path(last.filename).resolve().parents
    return ASSERTS[Path(last.filename).name, last.lineno or 0]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.plant.__name__)
def test_bug_trips_its_assert(bug: Bug) -> None:
    found = tripped(bug)
    assert found.place == bug.place
    assert found.condition.startswith(bug.condition)


def test_every_assert_of_the_core_has_a_bug_that_trips_it() -> None:
    assert set(ASSERTS.values()) - {tripped(bug) for bug in BUGS} == set()
