"""Virtual environments for figures and tests, made without a network."""

import sysconfig
import venv
from pathlib import Path

import numpy as np

LIBRARY = "scales"
"""A library with a single number, which differs from version to version."""


def make_environment(folder: Path, factor: int, with_numpy: bool = True) -> str:
    """An environment whose `scales` has this factor; numpy is that of this process."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = sysconfig.get_python_version()
    packages = folder / "lib" / f"python{version}" / "site-packages"
    write_library(packages, factor)
    if with_numpy:
        (packages / "numpy.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    return str(folder)


def write_library(folder: Path, factor: int) -> None:
    """The library itself, in one of its versions."""
    (folder / LIBRARY).mkdir(parents=True)
    (folder / LIBRARY / "__init__.py").write_text(f"FACTOR = {factor}\n")
