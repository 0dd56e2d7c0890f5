"""Cached files: made once, whole or not at all."""

import threading
from pathlib import Path

import pytest

from fermata.deployments.models.cache import cache_folder, cached


def test_xdg_names_the_folder_and_a_relative_path_is_ignored() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/fermata")
    home = Path.home() / ".cache" / "fermata"
    assert cache_folder({}) == home
    assert cache_folder({"XDG_CACHE_HOME": "here"}) == home


def test_of_eight_starters_one_makes_the_file(tmp_path: Path) -> None:
    made: list[int] = []
    path = tmp_path / "deep" / "file.npz"
    line = threading.Barrier(8)

    def make(part: Path) -> None:
        made.append(1)
        part.write_text("whole")

    def start() -> None:
        line.wait()
        cached(path, make)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert path.read_text() == "whole"


def test_a_maker_that_fails_leaves_nothing_and_the_next_one_makes(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"

    def fail(part: Path) -> None:
        part.write_text("hal")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        cached(path, fail)
    assert [each.name for each in tmp_path.iterdir()] == ["file.npz.lock"]

    def make(part: Path) -> None:
        part.write_text("whole")

    assert cached(path, make).read_text() == "whole"


def test_a_file_that_exists_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    path.write_text("kept")

    def fail(_part: Path) -> None:
        raise AssertionError("made again")

    assert cached(path, fail).read_text() == "kept"
