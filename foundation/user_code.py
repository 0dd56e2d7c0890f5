"""Imports functions that users name in their files as `module:function`."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def import_function(reference: str) -> Any:
    """Return the function that `module:function` names; raises ImportError or AttributeError."""
    module, _, name = reference.partition(":")
    prefer_user_folders()
    return getattr(import_module(module), name)


def prefer_user_folders() -> None:
    """Let the folders of PYTHONPATH come first on the path, in their order.

    Ray puts the folder it was started from before them. Where that is a checkout of Fermata, its
    `profiles` or `router` would hide a user's module of the same name.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = dict.fromkeys([*filter(None, given), *sys.path])


def find_beside(path: Path) -> None:
    """Let functions that a file names be found in the file's own folder, after all others."""
    folder = os.fspath(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
