"""An environment for the peers, apart from Fermata's own."""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

REQUIREMENTS = Path(__file__).parents[1] / "peers-requirements.txt"
ROOT = Path(__file__).parents[2]
PACKAGES = {"triton": "nvidia-pytriton", "mosec": "mosec", "litserve": "litserve"}
SHARED = ("msgspec", "numpy")
"""What the emulated GPU needs."""
INSTALL_S = 600.0


@dataclass(frozen=True, slots=True)
class Venv:
    folder: Path
    missing: dict[str, str] = field(default_factory=dict)
    """Peers that could not be installed, and why."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"


def make_venv(folder: Path, peers: Iterable[str]) -> Venv:
    """The environment in that folder, with whatever of the peers installs here."""
    venv = Venv(folder)
    if not venv.python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_S)
    # Triton's stub shuts PYTHONPATH out; what site-packages names it takes.
    (venv.packages / "fermata-benchmarks.pth").write_text(f"{ROOT}\n")
    for peer in peers:
        there = any(venv.packages.glob(f"{PACKAGES[peer].replace('-', '_')}-*"))
        if not there and (reason := _install(venv, PACKAGES[peer])):
            venv.missing[peer] = reason
    return venv


def _install(venv: Venv, package: str) -> str:
    """Why it could not be installed; empty where it was."""
    command = [str(venv.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--constraint", str(REQUIREMENTS), package, *SHARED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        return f"not installed after {INSTALL_S:g} s"
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "" if done.returncode == 0 else (errors or [f"pip ended with {done.returncode}"])[0]
