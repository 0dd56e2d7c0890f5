"""Pages whose commands need a server, played from top to bottom on the ports that they name."""

from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")
from documents import PAGES, ROOT, can_be_alone, play, serves

FIRST = ("README.md", "docs/tutorial.md")
"""What a newcomer reads; the others take their time."""


def cases() -> list[object]:
    found = [page for page in PAGES if serves(page)]
    names = [page.relative_to(ROOT).as_posix() for page in found]
    return [
        pytest.param(page, id=name, marks=() if name in FIRST else pytest.mark.long)
        for page, name in zip(found, names, strict=True)
    ]


@pytest.mark.live
@pytest.mark.skipif(not can_be_alone(), reason="no network namespaces for us on this machine")
@pytest.mark.parametrize("page", cases())
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    play(page, tmp_path)
