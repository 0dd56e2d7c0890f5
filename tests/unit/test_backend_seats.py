"""Of two processes on a seat one serves, whatever becomes of the other."""

import os
import signal
import subprocess
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from child_process import child

from fermata.deployments.backend.seats import FileLock, Holder, Seat, claim_seat

HOLD = """
import sys
from pathlib import Path
from fermata.deployments.backend.seats import Holder, claim_seat
seat = claim_seat(Path(sys.argv[1]), "gpu")
assert seat.serving.try_take()
seat.note(Holder(7, 1234))
print(seat.path.name, flush=True)
sys.stdin.read()
"""
SOON_S = 10.0


def first(folder: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process that serves."""
    return child(HOLD, folder, says="gpu-0")


def waits(seat: Seat) -> threading.Event:
    taken = threading.Event()
    seat.when_free(taken.set)
    return taken


def test_a_spare_serves_once_the_first_has_been_killed(tmp_path: Path) -> None:
    with first(tmp_path) as process:
        seat = Seat(tmp_path / "gpu-0")
        assert not seat.serving.try_take()
        assert seat.holder() == Holder(7, 1234)
        taken = waits(seat)
        assert not taken.is_set()
        process.kill()
        assert taken.wait(SOON_S)
        seat.note(Holder(8, os.getpid(), "spare"))
        assert seat.holder() == Holder(8, os.getpid(), "spare")


def test_it_does_not_while_the_first_is_only_stopped(tmp_path: Path) -> None:
    with first(tmp_path) as process:
        seat = Seat(tmp_path / "gpu-0")
        taken = waits(seat)
        process.send_signal(signal.SIGSTOP)
        assert not taken.wait(0.3)
        assert not seat.serving.mine
        process.kill()
        assert taken.wait(SOON_S)


def test_a_replica_takes_the_seat_of_the_one_that_died(tmp_path: Path) -> None:
    with first(tmp_path) as process:
        assert claim_seat(tmp_path, "gpu").path.name == "gpu-1"
        assert claim_seat(tmp_path, "other").path.name == "other-0"
        process.kill()
        process.wait()
        assert claim_seat(tmp_path, "gpu").path.name == "gpu-0"


def test_a_look_at_a_lock_leaves_it_as_it_was(tmp_path: Path) -> None:
    one, two = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert not one.is_held()
    assert two.try_take()
    assert one.is_held()
    assert two.is_held()
    assert not one.try_take()
    two.release()
    assert one.try_take()


def test_a_seat_without_a_word_has_no_holder(tmp_path: Path) -> None:
    seat = claim_seat(tmp_path, "gpu")
    assert seat.holder() is None
    with pytest.raises(AssertionError, match="serves"):
        seat.note(Holder(1, 2))
