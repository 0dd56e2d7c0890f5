"""The native build decides as the sources do, and its data travels to processes of either kind."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from fermata.foundation import native
from fermata.router.compiled import build, reason_not
from fermata.router.links.limits import SessionLimits
from fermata.router.links.transport import LinkOptions
from fermata.router.policies.ramsis.chain.solve import TableSolution

ROOT = Path(__file__).parents[2]
# To compile takes minutes, where nobody has done so before.
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(reason_not()), reason="nothing can be compiled here"),
]
DIGEST = "from benchmarks.core_drive import drive; print(drive(20, 64, 20_000).digest)"
ECHO = (
    "import pickle, sys; found = pickle.load(sys.stdin.buffer); "
    "from fermata.foundation import native; assert native.installed() == (sys.argv[1] == 'auto'); "
    "sys.stdout.buffer.write(pickle.dumps(found))"
)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    build()


def run(program: str, compiled: bool, data: bytes = b"") -> bytes:
    asked = "auto" if compiled else ""
    return subprocess.run(
        [sys.executable, "-c", program, asked],
        input=data,
        env={**os.environ, native.VARIABLE: asked},
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout


def test_every_dispatch_is_the_same() -> None:
    assert run(DIGEST, True) == run(DIGEST, False)


@pytest.mark.parametrize("compiled", [False, True])
def test_frozen_data_travels(compiled: bool) -> None:
    table = TableSolution(((1, 2), (3,)), 0.5, 0.25, 3)
    # The module of the first imports that of the second.
    sent = [LinkOptions(connect_ns=8), SessionLimits(silence_ns=7), table]
    assert pickle.loads(run(ECHO, compiled, pickle.dumps(sent))) == sent
