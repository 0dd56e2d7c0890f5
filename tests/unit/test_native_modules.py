"""A process uses native modules of the very sources that it would run, or the sources."""

import ast
import sys
from pathlib import Path

import pytest

from fermata.foundation import native
from fermata.router import compiled

ASKED = {native.VARIABLE: "auto"}


@pytest.fixture(autouse=True)
def interpreted() -> None:
    if native.installed():
        pytest.skip("this process has native modules already")


def test_a_process_that_is_not_asked_to_runs_its_sources(tmp_path: Path) -> None:
    assert native.install({}, tmp_path) == "not asked for"


def test_without_a_build_the_reason_is_told(tmp_path: Path) -> None:
    assert native.install(ASKED, tmp_path) == "there is no build"


def test_a_build_of_other_sources_is_not_used(tmp_path: Path) -> None:
    stale = tmp_path / "0123"
    stale.mkdir()
    (stale / native.MODULES).write_text("fermata.router.core.engine\n")
    assert native.install(ASKED, tmp_path) == "the build is of other sources"


def test_a_build_that_does_not_load_is_not_used(tmp_path: Path) -> None:
    broken = tmp_path / native.source_mark()
    broken.mkdir()
    assert "cannot be used" in native.install(ASKED, tmp_path)
    (broken / native.MODULES).write_text("fermata.router.core.engine\n")
    assert "cannot be used" in native.install(ASKED, tmp_path)
    assert not any(isinstance(each, native.NativeModules) for each in sys.meta_path)


def test_every_change_of_a_source_makes_another_mark(tmp_path: Path) -> None:
    for part in native.PARTS:
        (tmp_path / part).mkdir()
    source = tmp_path / "router" / "engine.py"
    source.write_text("A = 1\n")
    first = native.source_mark(tmp_path)
    assert native.source_mark(tmp_path) == first
    source.write_text("A = 2\n")
    assert native.source_mark(tmp_path) != first
    source.rename(source.with_name("other.py"))
    assert native.source_mark(tmp_path) != first


def test_what_serves_is_compiled() -> None:
    names = {path.as_posix() for path in compiled.compiled_modules()}
    assert {
        "router/core/engine.py",
        "router/links/session.py",
        "router/live/driver.py",
        "router/live/fleet/fleet.py",
        "router/telemetry/meters.py",
    } <= names


def test_modules_that_are_left_out_exist() -> None:
    for name in compiled.INTERPRETED:
        assert name == "__init__.py" or (compiled.PACKAGE / name).is_file(), name


def test_where_nothing_can_be_built_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no C compiler" in compiled.build_in_background(tmp_path)
    with pytest.raises(compiled.BuildError, match="no C compiler"):
        compiled.build(tmp_path)
    assert not list(tmp_path.glob("*/"))


def test_what_is_built_is_not_built_again(tmp_path: Path) -> None:
    folder = tmp_path / native.source_mark()
    folder.mkdir()
    assert compiled.build(tmp_path) == folder
    assert compiled.build_in_background(tmp_path) == "the router is compiled"


def test_a_build_depends_on_all_that_its_modules_import() -> None:
    known = set(native.source_files())
    for path in compiled.compiled_modules():
        for node in ast.walk(ast.parse((native.PACKAGE / path).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fermata."):
                whole = native.PACKAGE.joinpath(*str(node.module).split(".")[1:])
                assert whole.with_suffix(".py") in known or whole.is_dir(), (path, node.module)


def test_what_a_build_has_left_that_was_killed_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".building-1"
    (left / "c").mkdir(parents=True)
    (tmp_path / native.source_mark()).mkdir()
    compiled.build(tmp_path)
    assert not left.exists()


def test_builds_that_may_not_be_read_are_not_used(tmp_path: Path) -> None:
    # Modes do not keep root out; a name that no file may have keeps out everybody.
    assert "cannot be used" in native.install(ASKED, tmp_path / ("x" * 300))
