"""Virtual environments that models run in: found, and fit to run `child.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path

from fermata.foundation.errors import ConfigError
from fermata.foundation.user_code import prefer_user_folders

PYTHON_MIN = (3, 9)
ASK_S_MAX = 60.0
QUESTION = """
import importlib.util, json, sys
print(json.dumps([list(sys.version_info[:2]), importlib.util.find_spec("numpy") is not None]))
"""


def interpreter_of(environment: str) -> Path:
    """The interpreter of an environment, given by its folder or by itself; ConfigError where it
    cannot run a model."""
    given = Path(environment).expanduser()
    label = f"environment={environment!r}"
    if not given.exists():
        raise ConfigError(f"{label} is not there; make it: python -m venv {given}")
    python = given / "bin" / "python" if given.is_dir() else given
    if not python.is_file():
        raise ConfigError(
            f"{label} is no virtual environment: it has no bin/python; make it: "
            f"python -m venv {given}"
        )
    version, numpy = _answer(label, python)
    if version < PYTHON_MIN:
        raise ConfigError(
            f"{label} is Python {_dotted(version)}; give {_dotted(PYTHON_MIN)} or later"
        )
    if not numpy:
        raise ConfigError(f"{label} has no numpy; run {python} -m pip install numpy")
    # Its links stay as they are: by them an interpreter knows which environment is its own.
    return python.absolute()


def _answer(label: str, python: Path) -> tuple[tuple[int, ...], bool]:
    """(version, whether it has numpy) of an interpreter."""
    rule = "give the folder of a virtual environment, or its python"
    try:
        done = subprocess.run(
            [python, "-I", "-c", QUESTION],
            env=environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_S_MAX,
        )
        version, numpy = json.loads(done.stdout)
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired) as error:
        told = str(error).splitlines()[:1] or [type(error).__name__]
        if isinstance(error, ValueError | TypeError):
            told = done.stderr.splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise ConfigError(f"{label} does not run Python: {told[0]}; {rule}") from None
    return tuple(version), numpy


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def environ() -> dict[str, str]:
    """This process's environment variables, without those that lead to its own libraries."""
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if name not in own}


def user_folders() -> list[str]:
    """Folders in which users' own modules are found here; none of this interpreter's libraries."""
    prefer_user_folders()
    standard = Path(os.__file__).resolve().parent
    found: list[str] = []
    for given in sys.path:
        folder = Path(given or ".").resolve()
        parts = {*folder.parts}
        own = standard in (folder, *folder.parents) or {"site-packages", "dist-packages"} & parts
        if folder.is_dir() and not own:
            found.append(str(folder))
    return list(dict.fromkeys(found))
