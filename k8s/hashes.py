"""Hashes of all pinned dependencies, as the index tells them: `python k8s/hashes.py`.

It writes `constraints-hashes.txt`. `--report FILE` prints the lines of it that are needed for what
`pip install --dry-run --report FILE` would install; `--names` prints those of named packages.
`k8s/install.sh` gives these lines to `pip install --require-hashes`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONSTRAINTS, HASHES = ROOT / "constraints.txt", ROOT / "constraints-hashes.txt"
WHEEL = re.compile(r"-(cp311-cp311|cp3\d+-abi3|py3|py2\.py3)-?.*\.whl$")
PLATFORM = re.compile(r"(any|manylinux\w*_(x86_64|aarch64)(\.manylinux\w*)*)\.whl$")
"""Machines that the image is built for."""
SOURCES = (".tar.gz", ".zip")
OURS = {"fermata"}


class FileLinks(HTMLParser):
    """Files of a package, and the SHA-256 of each."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        url, _, digest = (dict(attrs).get("href") or "").partition("#sha256=")
        if tag == "a" and digest:
            self.found[url.rpartition("/")[2]] = digest


def canonical(name: str) -> str:
    """A package's name as indexes write it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> list[tuple[str, str]]:
    """(name, version) of every pinned package."""
    lines = [line.partition("#")[0].partition(";")[0].strip() for line in text.splitlines()]
    return [(line.partition("==")[0], line.partition("==")[2]) for line in lines if line]


def fits(file: str, version: str) -> bool:
    """Whether a file is of this version, and may be installed on a machine of ours."""
    if file.endswith(SOURCES):
        return re.sub(r"\.(tar\.gz|zip)$", "", file).endswith(f"-{version}")
    return bool(f"-{version}-" in file and WHEEL.search(file) and PLATFORM.search(file))


@cache
def pips_index() -> str:
    """The index that pip is set up with, or else its own."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    own: Any = import_module("pip._internal.models.index")
    found: str = os.environ.get("PIP_INDEX_URL") or told or own.PyPI.simple_url
    return found.rstrip("/")


def hashes(name: str, version: str) -> list[str]:
    """Hashes of one version's files, from the index."""
    index = pips_index()
    with urllib.request.urlopen(f"{index}/{canonical(name)}/", timeout=60) as page:
        links = FileLinks()
        links.feed(page.read().decode())
    return sorted(digest for file, digest in links.found.items() if fits(file, version))


def locked(names: set[str], text: str) -> list[str]:
    """Lines of the file of hashes for these packages; a SystemExit names those without any."""
    entries = [entry.strip() for entry in re.split(r"\n(?=\S)", text) if "==" in entry]
    known = {canonical(entry.partition("==")[0]): entry for entry in entries}
    if missing := sorted(names - known.keys()):
        sys.exit(f"no hashes of {', '.join(missing)}: pin them, then run k8s/hashes.py")
    return [known[name] for name in sorted(names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--names", nargs="*", default=())
    given = parser.parse_args()
    names = {canonical(name) for name in given.names}
    if given.report:
        planned = json.loads(given.report.read_text())["install"]
        names |= {canonical(each["metadata"]["name"]) for each in planned} - OURS
    if names or given.report:
        print("\n".join(locked(names, HASHES.read_text())))
    else:
        HASHES.write_text("".join(entries(CONSTRAINTS.read_text())))


def entries(text: str) -> Iterator[str]:
    """A file of hashes for pinned packages."""
    for name, version in pins(text):
        found = hashes(name, version)
        if not found:
            sys.exit(f"the index has no file of {name} {version} for the image")
        given = " \\\n    ".join(f"--hash=sha256:{digest}" for digest in found)
        yield f"{name}=={version} \\\n    {given}\n"


if __name__ == "__main__":
    main()
