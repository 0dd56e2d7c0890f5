"""A real browser, without a window: what it makes of a page, as text or as a picture."""

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_MS = 4000
"""Of the page's own time: it asks for a frame once a second."""


def run(url: str, folder: Path, *words: str) -> str:
    assert CHROMIUM is not None
    command = [
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *(f"--user-data-dir={folder}", f"--virtual-time-budget={WAIT_MS}", *words, url),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90)
    return done.stdout


def rendered(url: str, folder: Path) -> str:
    """The document after its script has run."""
    return run(url, folder, "--dump-dom")


def texts(document: str, name: str) -> list[str]:
    """What the elements of that class, or with that id, say."""
    found = re.findall(
        rf'<(\w+)[^>]*(?:class="[^"]*\b{name}\b[^"]*"|id="{name}")[^>]*>(.*?)</\1>',
        document,
        re.DOTALL,
    )
    return [unescape(re.sub(r"<[^>]+>", "", text)).strip() for _, text in found]
