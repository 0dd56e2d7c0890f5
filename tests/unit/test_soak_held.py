"""What a soak says that processes have kept."""

import pytest

pytest.importorskip("grpc")
from benchmarks.soak import Held, Process


def held(*files: list[int]) -> Held:
    return Held({pid: Process("backend", files=each) for pid, each in enumerate(files)})


def test_a_file_for_each_kill_is_seen() -> None:
    assert held([79, 80, 81], [79, 79, 79]).more_files() == 1


def test_a_link_that_another_of_its_role_has_now_is_none_more() -> None:
    assert held([80, 80, 79], [79, 79, 80]).more_files() == 0


def test_who_has_not_lived_for_long_tells_nothing() -> None:
    assert held([80, 80, 81], [95]).more_files() == 1
