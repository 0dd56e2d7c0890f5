"""Every pinned package has hashes, and the image is installed from these alone."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "k8s/hashes.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hashes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pin_has_hashes_of_the_same_version(script: ModuleType) -> None:
    text = (ROOT / "constraints-hashes.txt").read_text()
    hashed = re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert hashed == script.pins((ROOT / "constraints.txt").read_text())


def test_only_what_is_planned_is_locked(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    planned = [{"metadata": {"name": name}} for name in ("PyYAML", "fermata", "mypy_extensions")]
    report.write_text(json.dumps({"install": planned}))
    done = run("--report", str(report))
    assert re.findall(r"^\S+(?===)", done.stdout, re.MULTILINE) == ["mypy_extensions", "PyYAML"]
    planned.append({"metadata": {"name": "stranger"}})
    report.write_text(json.dumps({"install": planned}))
    refused = run("--report", str(report))
    assert refused.returncode == 1
    assert "no hashes of stranger" in refused.stderr


def run(*given: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPT), *given]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("file", "taken"),
    [
        ("idna-3.20-py3-none-any.whl", True),
        ("idna-3.20.tar.gz", True),
        ("idna-3.2-py3-none-any.whl", False),
        ("idna-13.20.tar.gz", False),
        ("idna-3.20-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("idna-3.20-cp38-abi3-manylinux_2_28_aarch64.whl", True),
        ("idna-3.20-cp312-cp312-manylinux_2_17_x86_64.whl", False),
        ("idna-3.20-cp311-cp311-win_amd64.whl", False),
    ],
)
def test_files_are_those_of_the_version_and_of_our_machines(
    script: ModuleType, file: str, taken: bool
) -> None:
    assert script.fits(file, "3.20") == taken


def test_the_image_takes_nothing_without_a_hash() -> None:
    """But our own code, which is there already."""
    lines = (ROOT / "k8s/Dockerfile").read_text().replace("\\\n", " ").splitlines()
    installs = [line for line in lines if "pip install" in line or "install.sh /" in line]
    assert len(installs) == 2
    for line in installs:
        assert "sh k8s/install.sh" in line
        for command in re.findall(r"pip install [^&]*", line):
            assert command.split() == [
                "pip",
                "install",
                "--no-cache-dir",
                "--no-deps",
                "--no-build-isolation",
                ".",
            ]
