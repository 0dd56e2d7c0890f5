"""Choices that are kept for the next start, and the packages that they need."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from played_runner import Played, make_network

from fermata.deployments.backend.execution.cuda.captured import PLAIN
from fermata.deployments.backend.kernels.background import COMPILED, BackgroundTuning
from fermata.deployments.backend.kernels.choice import Choice, save_choice
from fermata.deployments.backend.kernels.crash_mark import CrashMark
from fermata.deployments.specs.backend import ModelSpec

SPEC = ModelSpec("played", "torchvision:resnet18")
TIMES_NS = {PLAIN: {1: 100, 2: 100, 4: 200, 8: 400}, "fused": {1: 50, 2: 60, 4: 100, 8: 200}}


def packages(tuning: BackgroundTuning) -> list[str]:
    return sorted(path.name for path in tuning.folder.glob("compiled-*/*"))


def add_package(tuning: BackgroundTuning, runner: Any, size: int) -> Path:
    """A file where a package would be; it cannot be loaded."""
    folder = tuning.folder / f"compiled-{tuning._digest(SPEC)}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{size}-{tuning._compiler(SPEC, runner).order.weights}.pt2"
    path.write_text("no package")
    return path


def test_a_choice_is_kept_without_packages_that_it_does_not_need(tmp_path: Path) -> None:
    runner = Played(make_network(), TIMES_NS)
    tuning = BackgroundTuning(tmp_path, "a GPU", compiles=False)
    add_package(tuning, runner, 8)
    choice = tuning.tune(SPEC, runner)
    assert set(choice.ways.values()) == {"fused"}
    assert packages(tuning) == []
    again = Played(make_network(), TIMES_NS)
    assert tuning._use_known(SPEC, again)  # type: ignore[arg-type]
    assert again.graphs[8].way == "fused"
    # Another GPU has made no choice yet.
    other = BackgroundTuning(tmp_path, "another GPU")
    assert not other._use_known(SPEC, again)  # type: ignore[arg-type]


def test_what_has_ended_a_backend_is_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner: Any = Played(make_network(), TIMES_NS)
    tuning = BackgroundTuning(tmp_path, "a GPU")
    digest = tuning._digest(SPEC)
    other = CrashMark(tmp_path)
    other.set(digest)
    # Another backend tries it at this moment.
    assert set(tuning.tuner(SPEC, runner).sized) == {COMPILED}
    assert other.file is not None
    os.close(other.file)
    assert tuning.tuner(SPEC, runner).sized == {}
    assert "nothing is compiled" in caplog.text
    # Without what was compiled, a choice that needs it is made anew.
    save_choice(tuning._path(SPEC), Choice({4: COMPILED}, {PLAIN: {4: 200}, COMPILED: {4: 90}}))
    add_package(tuning, runner, 4)
    assert not tuning._use_known(SPEC, runner)
    assert tuning.tune(SPEC, runner).ways[4] == "fused"


def test_a_mark_goes_where_nothing_went_wrong(tmp_path: Path) -> None:
    mark = CrashMark(tmp_path)
    mark.set("a")
    mark.set("a")
    assert len(list(tmp_path.iterdir())) == 1
    mark.clear()
    mark.clear()
    assert list(tmp_path.iterdir()) == []
    assert mark.left("a") is None


def test_a_choice_without_its_packages_is_made_anew(tmp_path: Path) -> None:
    runner: Any = Played(make_network(), TIMES_NS)
    tuning = BackgroundTuning(tmp_path, "a GPU")
    known = Choice({2: "fused", 3: COMPILED, 4: COMPILED}, {PLAIN: {4: 200}, COMPILED: {4: 90}})
    save_choice(tuning._path(SPEC), known)
    assert not tuning._use_known(SPEC, runner)
    path = add_package(tuning, runner, 4)
    # Clients would wait for the compiler: one that is broken is left, until the next start.
    assert tuning._use_known(SPEC, runner)
    assert (runner.graphs[2].way, runner.graphs[4].way) == ("fused", PLAIN)
    assert not path.exists()
