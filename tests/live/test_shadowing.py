"""A user's own `profiles.py`, `router/` and `clients/` beside a configuration."""

import json
from pathlib import Path

import pytest
from served import ROOT, load, serving
from wheel import build_wheel, install_wheel

pytestmark = pytest.mark.live

MODEL = """
import clients
import router
import profiles


def load():
    assert router.OWNER == clients.OWNER == profiles.OWNER == "the user"

    def run(batch):
        import router

        assert router.OWNER == "the user"
        return batch

    return run


OWNER = "the user"
"""
SPY = """
import json, os, sys, threading, time

FOLDER = {folder!r}


def look():
    while True:
        files = {{}}
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if path and name != "__main__" and "/fermata/" in path:
                files.setdefault(os.path.realpath(path), []).append(name)
        if files:
            seen = {{"modules": len(files), "twice": [n for n in files.values() if len(n) > 1]}}
            draft = os.path.join(FOLDER, f"{{os.getpid()}}.draft")
            with open(draft, "w") as file:
                json.dump(seen, file)
            os.replace(draft, draft[:-6] + ".json")
        time.sleep(0.5)


threading.Thread(target=look, daemon=True).start()
"""
CONFIG = {
    "name": "own",
    "applications": [
        {
            "name": "own",
            "slo_ms": 5000,
            "input": {"name": "input", "dtype": "FP32", "shape": [4]},
            "variants": [{"name": "own", "model": "profiles:load"}],
        }
    ],
    "backend": {"count": 1, "device": "cpu"},
}


def user_folder(folder: Path) -> Path:
    """Modules with the names of our folders, and a spy in each process that finds them."""
    folder.mkdir()
    (folder / "profiles.py").write_text(MODEL)
    for name in ("router", "clients"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("OWNER = 'the user'\n")
    (folder / "seen").mkdir()
    (folder / "sitecustomize.py").write_text(SPY.format(folder=str(folder / "seen")))
    return folder


@pytest.mark.parametrize("installed", [pytest.param("checkout", marks=pytest.mark.long), "wheel"])
def test_neither_hides_the_other_and_no_module_has_two_names(
    tmp_path: Path, installed: str
) -> None:
    folder = user_folder(tmp_path / "user")
    site = None
    cwd = ROOT
    if installed == "wheel":
        site, cwd = tmp_path / "site", folder
        install_wheel(build_wheel(tmp_path), site)
    with serving(folder, CONFIG, 1, cwd=cwd, installed=site) as server:
        report = load(server, "own", rate=20, seconds=2)
    assert report["good"] == report["requests"] > 0
    seen = [json.loads(path.read_text()) for path in (folder / "seen").glob("*.json")]
    assert [each["twice"] for each in seen if each["twice"]] == []
    # Control plane, router, frontend and backend; tests/unit/test_one_name.py has the command.
    assert sum(each["modules"] > 20 for each in seen) >= 4
