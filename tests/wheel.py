"""A wheel of this tree, built as `pip install .` builds it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path) -> Path:
    """Build it into the folder; returns its path."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)),
        ],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_wheel(wheel: Path, folder: Path) -> None:
    """Install it there, without what it needs: that is here already."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
            *("--target", str(folder), str(wheel)),
        ],
        check=True,
        capture_output=True,
    )
