"""Builds the router as native code: `python -m fermata.router.compiled`.

mypyc makes C of what serves: core, policies, the live driver, links, meters. The build lies in the
Python environment, under the mark of its sources. `fermata.foundation.native` uses it.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from fermata.foundation.native import (
    LIBRARY,
    MODULES,
    PACKAGE,
    USE,
    builds_folder,
    source_files,
    source_mark,
)

COMPILED = (
    "foundation/learnt_time.py",
    "foundation/units.py",
    "router/core/**/*.py",
    "router/health/*.py",
    "router/leadership/role.py",
    "router/links/*.py",
    "router/live/**/*.py",
    "router/placement/*.py",
    "router/policies/**/*.py",
    "router/telemetry/*.py",
)
INTERPRETED = {
    "__init__.py": "packages hold nothing",
    "router/core/queries/query_table.py": "simulations extend it, which no native class allows",
    "router/links/closing.py": "an enumeration that takes unknown values is no native class",
    "router/links/connecting.py": "as transport.py",
    "router/links/directory.py": "msgspec makes its messages, and they are native as it is",
    "router/links/heartbeat.py": "simulations extend it, and it is called a few times a second",
    "router/links/limits.py": "options of the transport extend it",
    "router/links/messages.py": "msgspec makes them, and they are native as it is",
    "router/links/tls.py": "OpenSSL does the work",
    "router/links/transport.py": "objects of uvloop are not of the types that asyncio's have",
    "router/links/unavailability.py": "as closing.py, and msgspec makes its message",
    "router/links/wire.py": "as transport.py",
    "router/live/own_speed.py": "Ray runs its function as a task, and takes no native one",
    "router/live/subprocess_worker.py": "it is a program of its own, which runs by its name",
    "router/policies/application.py": "files of users extend it",
    "router/policies/catalog.py": "it reads options by reflection, once",
    "router/telemetry/dashboard_frames.py": "data alone, once a second",
    "router/telemetry/snapshot.py": "data alone, once a second",
}
"""By path or name: modules that stay as they are, and why."""
OPTIMISE = "-O1"
"""Higher levels take longer to compile, and made no faster core (`benchmarks/core_drive.py`)."""
FLAGS = (OPTIMISE, "-w", "-fPIC", "-fwrapv", "-DNDEBUG")
MYPY = ("--config-file=", "--ignore-missing-imports", "--disable-error-code=import-untyped")
"""An image has no stubs of the libraries that are called now and then."""
KEPT = 3
"""Builds of other sources that are kept, the latest ones: checkouts may share an environment."""
UNDER_WAY = ".building-"
"""Folders of builds that are not done begin so."""
LOCK, LOG = ".lock", "build.log"
NICENESS = 19


class BuildError(Exception):
    """The build did not come about; its text says why."""


def compiled_modules(package: Path = PACKAGE) -> list[Path]:
    """List the sources to compile, relative to the package."""
    sources = [path.relative_to(package) for path in source_files(package)]
    return [
        path
        for path in sources
        if any(_matches(path, pattern) for pattern in COMPILED)
        and path.name not in INTERPRETED
        and os.fspath(path) not in INTERPRETED
    ]


def _matches(path: Path, pattern: str) -> bool:
    folder, _, name = pattern.rpartition("/")
    if folder.endswith("/**"):
        return Path(folder.removesuffix("/**")) in path.parents
    return path.parent == Path(folder) and name in ("*.py", path.name)


def reason_not() -> str:
    """Why nothing can be built here; empty where it can."""
    if find_spec("mypyc") is None:
        return "mypyc is not installed (pip install 'mypy[mypyc]')"
    if _compiler() is None:
        return "there is no C compiler (cc)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "the headers of Python are not installed"
    return ""


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc")


def build(builds: Path | None = None, jobs: int = 0) -> Path:
    """Build what is not built yet, with so many compilers at once (0: one for each core); returns
    its folder. Raises `BuildError`."""
    builds = builds_folder() if builds is None else builds
    folder = builds / source_mark()
    try:
        builds.mkdir(parents=True, exist_ok=True)
        with (builds / LOCK).open("w") as lock:
            # Another process may be at it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in builds.glob(f"{UNDER_WAY}*"):
                # Whoever was at it has died: nobody else holds the lock.
                shutil.rmtree(left, ignore_errors=True)
            if not folder.is_dir():
                _build(builds, folder, jobs or os.cpu_count() or 1)
    except OSError as error:
        raise BuildError(str(error)) from None
    return folder


def _build(builds: Path, folder: Path, jobs: int) -> None:
    if reason := reason_not():
        raise BuildError(reason)
    with tempfile.TemporaryDirectory(dir=builds, prefix=UNDER_WAY) as name:
        work = Path(name)
        modules = compiled_modules()
        sources = _translate(work, modules)
        made = work / "made"
        made.mkdir()
        _compile(work, sources, made / f"{LIBRARY}{sysconfig.get_config_var('EXT_SUFFIX')}", jobs)
        names = [".".join((PACKAGE.name, *path.with_suffix("").parts)) for path in modules]
        (made / MODULES).write_text("\n".join(names) + "\n")
        _try_out(made, names)
        made.rename(folder)
    _forget_old(builds, folder)


def _translate(work: Path, modules: Sequence[Path]) -> list[Path]:
    """Make C of the modules; a copy of the package keeps what mypy writes out of it."""
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(PACKAGE, work / PACKAGE.name, ignore=ignore)
    paths = [os.fspath(Path(PACKAGE.name) / path) for path in modules]
    program = (
        "import sys; from mypyc.build import mypycify; "
        "mypycify(sys.argv[1:], multi_file=True, group_name='fermata', target_dir='c')"
    )
    _run([sys.executable, "-P", "-c", program, *MYPY, *paths], work)
    return sorted((work / "c").glob("*.c"), key=lambda path: -path.stat().st_size)


def _compile(work: Path, sources: Sequence[Path], library: Path, jobs: int) -> None:
    compiler = _compiler()
    assert compiler is not None
    spec = find_spec("mypyc")
    assert spec is not None
    assert spec.origin is not None
    runtime = Path(spec.origin).parent / "lib-rt"
    include = [f"-I{path}" for path in (runtime, work / "c", sysconfig.get_paths()["include"])]

    def compile_one(source: Path) -> str:
        target = os.fspath(source.with_suffix(".o"))
        _run([compiler, *FLAGS, *include, "-c", os.fspath(source), "-o", target], work)
        return target

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, sources))
    shared = (
        ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    )
    _run([compiler, *shared, *objects, "-lm", "-o", os.fspath(library)], work)


def _try_out(made: Path, names: Sequence[str]) -> None:
    """Import every module once: a build that does not come up is none."""
    program = (
        "import sys; from pathlib import Path; from fermata.foundation.native import NativeModules;"
        " sys.meta_path.insert(0, NativeModules(Path(sys.argv[1])));"
        " [__import__(name) for name in sys.argv[2:]]"
    )
    # What is not native itself must come up on it too.
    serves = f"{PACKAGE.name}.router.leadership.process"
    _run([sys.executable, "-c", program, os.fspath(made), *names, serves], PACKAGE.parent)


def _run(command: Sequence[str], folder: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in USE}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise BuildError(f"{command[0]} failed: {(ended.stdout + ended.stderr)[-2000:]}")


def _forget_old(builds: Path, newest: Path) -> None:
    others = [path.parent for path in builds.glob("*/" + MODULES) if path.parent != newest]
    others.sort(key=lambda path: path.stat().st_mtime)
    for path in others[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def build_in_background(builds: Path | None = None) -> str:
    """Start to build at the lowest priority, where that can be done; returns a line to show."""
    builds = builds_folder() if builds is None else builds
    if (builds / source_mark()).is_dir():
        return "the router is compiled"
    if reason := reason_not():
        return f"the router is not compiled, and runs as it is: {reason}"
    try:
        builds.mkdir(parents=True, exist_ok=True)
        with (builds / LOG).open("w") as log:
            command = [sys.executable, "-m", "fermata.router.compiled", "--jobs", "1"]
            command = ["nice", "-n", str(NICENESS), *command]
            subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    except OSError as error:
        return f"the router is not compiled, and runs as it is: {error}"
    return f"the router is being compiled for its next start; see {builds / LOG}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fermata.router.compiled",
        description="Compile the router with mypyc, which takes some minutes.",
    )
    parser.add_argument(
        "--background", action="store_true", help="do it at the lowest priority, and do not wait"
    )
    parser.add_argument("--jobs", type=int, default=0, help="compilers at once; 0: one a core")
    given = parser.parse_args()
    if given.background:
        print(build_in_background())
        return
    try:
        print(f"compiled router in {build(jobs=given.jobs)}")
    except BuildError as error:
        sys.exit(f"the router is not compiled, and runs as it is: {error}")


if __name__ == "__main__":
    main()
