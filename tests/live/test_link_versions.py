"""Links between processes of this version, the one before and one after, each with its own code."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.live_server import ROOT
from benchmarks.old_code import unpack
from benchmarks.upgrades import next_version
from fermata.router.links.messages import PROTOCOLS

pytestmark = pytest.mark.live

SCRIPT = Path(__file__).with_name("link_script.py")
NOW, BEFORE = PROTOCOLS
HEARD = "heard (('v', 1, 2),) 3"


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("code")
    return {"old": unpack(folder), "new": ROOT, "next": next_version(folder, is_raised=True)}


@contextmanager
def end(code: Path, role: str, address: str = "") -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, str(SCRIPT), role, address]
    environment = {"PYTHONPATH": str(code), "PATH": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("router", "backend", "refused", "spoken"),
    [
        ("new", "new", 0, NOW),
        ("new", "old", 0, BEFORE),
        ("old", "new", 1, BEFORE),
        ("old", "old", 0, BEFORE),
        ("next", "new", 0, NOW),
        ("new", "next", 1, NOW),
    ],
)
def test_each_version_links_with_the_other(
    trees: dict[str, Path], router: str, backend: str, refused: int, spoken: int
) -> None:
    """The newer end that connects is refused once, and then speaks as the other does."""
    with end(trees[router], "router") as listening:
        assert listening.stdout is not None
        address = listening.stdout.readline().strip()
        with end(trees[backend], "backend", address) as connecting:
            said = connecting.communicate(timeout=60)[0].splitlines()
        heard = listening.communicate(timeout=60)[0].splitlines()
    assert said == ["refused"] * refused + [f"speaks {spoken}", "heard True"]
    assert heard == ["refused"] * refused + [f"speaks {spoken}", HEARD]
