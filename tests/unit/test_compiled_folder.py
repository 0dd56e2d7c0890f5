"""Building the compiled core replaces a folder of its own, and never one of the user's."""

import subprocess
import sys
from pathlib import Path


def test_a_folder_with_other_files_is_refused_and_kept(tmp_path: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    command = [sys.executable, "-m", "fermata.router.compiled", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "holds other files" in ended.stderr.splitlines()[-1]
    assert mine.read_text() == "mine"
