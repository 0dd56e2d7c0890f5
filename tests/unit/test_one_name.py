"""The installed package is `fermata` alone, and every file is one module."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from wheel import build_wheel, install_wheel

from fermata.commands.serve import python_path
from fermata.foundation.user_code import import_function

ROOT = Path(__file__).parents[2]
TWICE = """
import os, sys
from fermata.commands.main import main
import fermata.deployments.app, fermata.simulator.run, fermata.fault_simulator.run
files = {}
for name, module in list(sys.modules.items()):
    path = getattr(module, "__file__", None)
    # The virtual environment lies in the checkout too, and others name their modules twice.
    if path and path.startswith(sys.argv[1]) and "site-packages" not in path:
        files.setdefault(os.path.realpath(path), []).append(name)
assert len(files) > 150, len(files)
print([names for names in files.values() if len(names) > 1])
"""


def run(command: list[str], cwd: Path, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel is installed in."""
    folder = tmp_path_factory.mktemp("site")
    install_wheel(build_wheel(folder / "wheel"), folder)
    return folder


def test_the_wheel_holds_one_package(site: Path) -> None:
    with zipfile.ZipFile(next((site / "wheel").glob("*.whl"))) as wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"fermata"}
    assert {
        "fermata/py.typed",
        "fermata/deployments/local.yaml",
        "fermata/router/core/matching/rank.py",
    } < {*names}
    assert not [name for name in names if "seeded_bugs" in name or "/test" in name]


def test_no_module_has_two_names() -> None:
    assert run([sys.executable, "-c", TWICE, str(ROOT)], ROOT).strip() == "[]"


@pytest.mark.parametrize("shadow", ["profiles", "router", "clients"])
def test_a_users_own_modules_do_not_break_the_command_line(
    site: Path, tmp_path: Path, shadow: str
) -> None:
    (tmp_path / f"{shadow}.py").write_text("def load(): return lambda batch: batch\n")
    model = f"{shadow}:load"
    command = [sys.executable, "-m", "fermata.commands.main", "profile", model]
    run([*command, "--batches", "1,2", "--input", "4", "-o", "p.json"], tmp_path, str(site))
    assert (tmp_path / "p.json").stat().st_size > 0


def test_user_code_comes_before_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles.py").write_text("def mine(): return 'the user'\n")
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path / "config.yaml"))
    assert import_function("profiles:mine")() == "the user"
    monkeypatch.delitem(sys.modules, "profiles")
