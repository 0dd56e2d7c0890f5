"""A real browser, without a window."""

import shutil
import subprocess
import tempfile
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_MS = 4000
"""Of the page's own time: it asks for a frame once a second."""
LIMIT_S = 90.0


def run(url: str, *words: str) -> str:
    """What it prints, once the page has had its time."""
    assert CHROMIUM is not None, "no Chromium here (Debian: chromium)"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={profile}", f"--virtual-time-budget={WAIT_MS}", *words, url),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return done.stdout


def rendered(url: str) -> str:
    """The document after its script has run."""
    return run(url, "--dump-dom")


def picture(url: str, path: Path, size: tuple[int, int], *, dark: bool = False) -> None:
    """A PNG of what it looks like, for somebody who likes it dark or light."""
    words = [f"--screenshot={path}", f"--window-size={size[0]},{size[1]}"]
    if dark:
        words.append("--blink-settings=preferredColorScheme=0")
    run(url, *words)
