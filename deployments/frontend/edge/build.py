"""Builds the native edge: `python -m fermata.deployments.frontend.edge.build`.

It needs a C compiler, the headers of Python, and nghttp2 with its header. The build lies in the
Python environment, under the mark of its sources: another line of code is another build.
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
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent
NAME = "fermata_edge"
SOURCES = ("call.c", "session.c", "connection.c", "server.c", "module.c")
HEADER = "edge.h"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-fstack-protector-strong", "-shared")
LOCK = ".lock"


class EdgeError(Exception):
    """The native edge cannot be built or used; the text says why."""


def edge_mark(folder: Path = FOLDER) -> str:
    """Name the sources and the Python that loads them: a build is of one mark alone."""
    with_what = f"{sys.version} {sysconfig.get_config_var('EXT_SUFFIX')} {_more_flags()}"
    found = hashlib.sha256(with_what.encode())
    for name in (HEADER, *SOURCES):
        found.update(f"\n{name}\n".encode())
        found.update((folder / name).read_bytes())
    return found.hexdigest()[:16]


def builds_folder() -> Path:
    """The folder of all builds: it belongs to the environment, and goes with it."""
    return Path(sys.prefix) / "fermata-edge"


def library_path(builds: Path | None = None) -> Path:
    """Where the build of these very sources is, or would be."""
    builds = builds_folder() if builds is None else builds
    return builds / edge_mark() / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"


def reason_not() -> str:
    """Why nothing can be built here; empty where it can."""
    if sys.platform != "linux":
        return "it is for Linux alone"
    compiler = _compiler()
    if compiler is None:
        return "there is no C compiler (cc)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "the headers of Python are not installed"
    asked = subprocess.run(
        [compiler, "-E", "-"], input=b"#include <nghttp2/nghttp2.h>\n", capture_output=True
    )
    return "" if asked.returncode == 0 else "nghttp2 is not installed (apt: libnghttp2-dev)"


def _more_flags() -> list[str]:
    """Flags of the user's, such as `-g -fsanitize=address`."""
    return os.environ.get("EDGE_CFLAGS", "").split()


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc")


def build(builds: Path | None = None) -> Path:
    """Build what is not built yet; returns the library's path. Raises `EdgeError`."""
    path = library_path(builds)
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        with (path.parent.parent / LOCK).open("w") as lock:
            # Another process may be at it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                if reason := reason_not():
                    raise EdgeError(reason)
                _compile(path)
    except OSError as error:
        raise EdgeError(str(error)) from None
    return path


def _compile(path: Path) -> None:
    compiler = _compiler()
    assert compiler is not None
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".building-") as name:
        made = Path(name) / path.name
        sources = [os.fspath(FOLDER / source) for source in SOURCES]
        include = f"-I{sysconfig.get_paths()['include']}"
        flags = (*FLAGS, *_more_flags())
        command = [compiler, *flags, include, *sources, "-o", os.fspath(made), "-lnghttp2"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise EdgeError(f"{compiler} failed: {ended.stderr[-2000:]}")
        # A build that does not come up is none.
        load(made)
        made.rename(path)


def load(path: Path | None = None) -> ModuleType:
    """The module, from the build of these very sources. Raises `EdgeError`."""
    if path is None:
        path = library_path()
        if not path.exists():
            other = any(builds_folder().glob(f"*/{NAME}*"))
            raise EdgeError("the build is of other sources" if other else "there is no build")
    loader = ExtensionFileLoader(NAME, os.fspath(path))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise EdgeError(f"the build cannot be used: {error}") from None
    return module


def main() -> None:
    try:
        print(f"native edge in {build()}")
    except EdgeError as error:
        sys.exit(f"the native edge is not built, and gRPC's own server serves: {error}")


if __name__ == "__main__":
    main()
