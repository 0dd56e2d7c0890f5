"""Native extensions of ours, each built of a few C sources where a compiler is.

A build lies in the Python environment, under the mark of its sources: another line of code is
another build.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-fPIC", "-fstack-protector-strong", "-shared")
MORE_FLAGS = "NATIVE_CFLAGS"
"""Environment variable of the user's flags, such as `-g -fsanitize=address`."""
LOCK = ".lock"


class ExtensionError(Exception):
    """An extension cannot be built or used; the text says why."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library that an extension is linked with."""

    name: str
    header: str
    package: str
    """Package of apt's that holds its header."""


@dataclass(frozen=True, slots=True)
class Extension:
    """A module in C: its sources, and how they are built."""

    name: str
    folder: Path
    sources: tuple[str, ...]
    headers: tuple[str, ...] = ()
    library: Library | None = None
    flags: tuple[str, ...] = ("-O2",)

    def mark(self, folder: Path | None = None) -> str:
        """Name the sources and the Python that loads them: a build is of one mark alone."""
        folder = self.folder if folder is None else folder
        with_what = f"{sys.version} {sysconfig.get_config_var('EXT_SUFFIX')} {self._all_flags()}"
        found = hashlib.sha256(with_what.encode())
        for name in (*self.headers, *self.sources):
            found.update(f"\n{name}\n".encode())
            found.update((folder / name).read_bytes())
        return found.hexdigest()[:16]

    def builds_folder(self) -> Path:
        """The folder of all its builds: it belongs to the environment, and goes with it."""
        return Path(sys.prefix) / self.name.replace("_", "-")

    def path(self, builds: Path | None = None) -> Path:
        """Where the build of these very sources is, or would be."""
        builds = self.builds_folder() if builds is None else builds
        return builds / self.mark() / f"{self.name}{sysconfig.get_config_var('EXT_SUFFIX')}"

    def reason_not(self) -> str:
        """Why it cannot be built here; empty where it can."""
        if sys.platform != "linux":
            return "it is for Linux alone"
        compiler = _compiler()
        if compiler is None:
            return "there is no C compiler (cc)"
        if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
            return "the headers of Python are not installed"
        if self.library is None:
            return ""
        line = f"#include <{self.library.header}>\n".encode()
        asked = subprocess.run([compiler, "-E", "-"], input=line, capture_output=True)
        missing = f"{self.library.name} is not installed (apt: {self.library.package})"
        return "" if asked.returncode == 0 else missing

    def build(self, builds: Path | None = None) -> Path:
        """Build what is not built yet; returns the library's path. Raises `ExtensionError`."""
        path = self.path(builds)
        try:
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            with (path.parent.parent / LOCK).open("w") as lock:
                # Another process may be at it.
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    if reason := self.reason_not():
                        raise ExtensionError(reason)
                    self._compile(path)
        except OSError as error:
            raise ExtensionError(str(error)) from None
        return path

    def build_and_say(self, what: str, otherwise: str) -> None:
        """Build it for a person at a terminal; exits where that fails."""
        try:
            print(f"{what} in {self.build()}")
        except ExtensionError as error:
            sys.exit(f"{what} is not built, and {otherwise}: {error}")

    def _compile(self, path: Path) -> None:
        compiler = _compiler()
        assert compiler is not None
        path.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".building-") as name:
            made = Path(name) / path.name
            sources = [os.fspath(self.folder / source) for source in self.sources]
            include = f"-I{sysconfig.get_paths()['include']}"
            linked = () if self.library is None else (f"-l{self.library.name}",)
            command = [compiler, *self._all_flags(), include, *sources, "-o", os.fspath(made)]
            ended = subprocess.run([*command, *linked], capture_output=True, text=True, check=False)
            if ended.returncode:
                raise ExtensionError(f"{compiler} failed: {ended.stderr[-2000:]}")
            # A build that does not come up is none.
            self.load(made)
            made.rename(path)

    def _all_flags(self) -> list[str]:
        return [*FLAGS, *self.flags, *os.environ.get(MORE_FLAGS, "").split()]

    def load(self, path: Path | None = None) -> ModuleType:
        """The module, from the build of these very sources. Raises `ExtensionError`."""
        if path is None:
            path = self.path()
            if not path.exists():
                other = any(self.builds_folder().glob(f"*/{self.name}*"))
                raise ExtensionError(
                    "the build is of other sources" if other else "there is no build"
                )
        loader = ExtensionFileLoader(self.name, os.fspath(path))
        spec = importlib.util.spec_from_loader(self.name, loader)
        assert spec is not None
        try:
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except (ImportError, OSError) as error:
            raise ExtensionError(f"the build cannot be used: {error}") from None
        return module


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc")
