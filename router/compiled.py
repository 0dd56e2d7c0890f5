"""Builds the optional compiled core: `python -m fermata.router.compiled FOLDER`.

The folder gets a copy of the package whose core and policies are native modules made by mypyc. Put
it first on PYTHONPATH to use it; decisions are the same, to the digest.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
INTERPRETED = ("__init__.py", "catalog.py", "application.py", "query_table.py")
"""The catalog reads options by reflection, once, at start: nothing to gain there. Files of users
extend the application, and simulations the query table, which no native class allows."""

MARK = ".compiled-core"
"""A folder that has this file was made here, and may be made anew."""


def compiled_modules() -> list[str]:
    """List the paths of the modules to compile, relative to the folder that holds the package."""
    router = PACKAGE / "router"
    files = [*sorted(router.glob("core/**/*.py")), *sorted(router.glob("policies/**/*.py"))]
    return [str(path.relative_to(PACKAGE.parent)) for path in files if path.name not in INTERPRETED]


def build(folder: Path) -> None:
    """Compile into the folder; raises `CalledProcessError` with mypyc's output if it fails."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=ignore)
    mypyc = Path(sys.executable).with_name("mypyc")
    subprocess.run([mypyc, *compiled_modules()], cwd=folder, check=True, capture_output=True)
    shutil.rmtree(folder / "build")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fermata.router.compiled",
        description="Compile the router's core with mypyc, which takes some minutes.",
    )
    parser.add_argument("folder", type=Path, help="an empty folder, or one of an earlier build")
    folder: Path = parser.parse_args().folder
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        parser.error(f"{folder} holds other files; name an empty folder, such as build/compiled")
    try:
        build(folder)
    except FileNotFoundError:
        sys.exit("mypyc is not installed; pip install 'mypy[mypyc]'")
    except subprocess.CalledProcessError as error:
        sys.exit(f"mypyc failed: {error.stdout.decode()[-2000:]}{error.stderr.decode()[-2000:]}")
    print(f"compiled core in {folder}; use it with PYTHONPATH={folder}")


if __name__ == "__main__":
    main()
