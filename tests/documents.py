"""Plays documents: every command in them runs as it stands, in order, in a folder of its own.

A comment before a block says what a reader would know by himself:

    <!-- file: problem.yaml -->     the block is that file, for the commands that follow
    <!-- not run: needs a GPU -->   its commands are not run, and why

A command that serves goes on until the next one that does, or the end of the page. Pages with such
a command are played in a network of their own, on the ports that they name:
`python tests/documents.py PAGE FOLDER`.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = ("*.md", "docs/*.md", "k8s/*.md", "profiles/*.md")
PAGES = sorted(page for place in PLACES for page in ROOT.glob(place))
BLOCK = re.compile(r"(?:<!-- (file|not run): (.+?) -->\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.M)
SERVES = re.compile(r"(?:(?:\.venv/bin/)?fermata serve|make serve)\b ?(?:CONFIG=)?(.*)")
SAMPLE = "deployments/local.yaml"
SERVING = "serving "
"""How a server's line begins once it is up."""
START_S = 180.0
STOP_S = 60.0
COMMAND_S = 240.0
ALONE = (
    *("unshare", "--map-root-user", "--net", "sh", "-c"),
    # Ray asks which address a packet to anywhere would have.
    'ip link set lo up && ip route add default dev lo src 127.0.0.1 && exec "$@"',
    "sh",
)
"""A network of one's own: the ports that pages name may be taken here."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    file: str = ""
    """What the page calls it."""
    not_run: str = ""
    """Why its commands are not run."""

    def commands(self) -> list[str]:
        """Lines after a prompt; what is printed has none."""
        joined = self.text.replace("\\\n", "")
        lines = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
        return [re.split(r"\s+# ", line)[0].strip() for line in lines]


def blocks(page: Path, language: str = "") -> list[Block]:
    """What a page shows, all or in one language."""
    found = [
        Block(
            each[3],
            each[4],
            file=each[2] if each[1] == "file" else "",
            not_run=each[2] if each[1] == "not run" else "",
        )
        for each in BLOCK.finditer(page.read_text())
    ]
    return [each for each in found if language in ("", each.language)]


def commands(page: Path) -> list[str]:
    """Those that are run."""
    found = [each for each in blocks(page, "console") if not each.not_run]
    return [command for each in found for command in each.commands()]


def serves(page: Path) -> bool:
    return any(SERVES.match(command) for command in commands(page))


def can_be_alone() -> bool:
    return subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0


class FailedError(Exception):
    """A command of a page does not do what the page says."""


class Reader:
    """Does what a page says, in a folder with everything that a checkout has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: subprocess.Popen[bytes] | None = None
        for entry in ROOT.iterdir():
            if not entry.name.startswith("."):
                (folder / entry.name).symlink_to(entry)
        tools = folder / ".venv/bin"
        tools.mkdir(parents=True)
        for name, runs in (("fermata", " -m fermata.commands.main"), ("python", "")):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec {sys.executable}{runs} "$@"\n')
            tool.chmod(0o755)
        # An answer that says no is a failure, as for a reader.
        (folder / ".curlrc").write_text("fail\n")
        path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        self.environment = {
            **os.environ,
            "PATH": path,
            "HOME": str(folder),
            "XDG_CACHE_HOME": cache,
            "PYTHONPATH": str(ROOT),
            "RAY_ADDRESS": "local",
        }

    def read(self, found: Sequence[Block]) -> None:
        try:
            for each in found:
                if each.file:
                    path = self.folder / each.file
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(each.text)
                elif each.language == "console" and not each.not_run:
                    for command in each.commands():
                        self._do(command)
        finally:
            self._stop()

    def _do(self, command: str) -> None:
        serving = SERVES.match(command)
        if serving is not None:
            self._stop()
            self._serve(serving[1].strip() or SAMPLE)
            return
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode:
            raise FailedError(f"$ {command}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")

    def _serve(self, config: str) -> None:
        log = self.folder / "server.log"
        with log.open("w") as out:
            self.server = subprocess.Popen(
                ["fermata", "serve", *config.split()],
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        end_s = time.monotonic() + START_S
        while SERVING not in log.read_text():
            if self.server.poll() is not None or time.monotonic() > end_s:
                raise FailedError(f"$ fermata serve {config}\n{log.read_text()[-3000:]}")
            time.sleep(0.2)

    def _stop(self) -> None:
        """Ctrl-C, as a reader would."""
        if self.server is None:
            return
        if self.server.poll() is None:
            os.killpg(self.server.pid, signal.SIGINT)
        try:
            self.server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.server.pid, signal.SIGKILL)
            raise
        self.server = None


def play(page: Path, folder: Path) -> None:
    """Raise FailedError where a command fails; pages that serve in a network of their own."""
    if not serves(page):
        Reader(folder).read(blocks(page))
        return
    command = [*ALONE, sys.executable, __file__, str(page), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedError(done.stderr[-4000:])


if __name__ == "__main__":
    Reader(Path(sys.argv[2])).read(blocks(Path(sys.argv[1])))
