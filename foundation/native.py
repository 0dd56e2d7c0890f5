"""Modules of the package as native code, in place of the same modules' sources.

A process that is started with `FERMATA_COMPILED=auto` looks for a build of the very sources that it
would run, made by `python -m fermata.router.compiled` with the same Python. Without one it runs the
sources. Decisions are the same, so processes of both kinds serve together.
"""

import ctypes
import dataclasses
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).parents[1]
PARTS = ("foundation", "partitioner", "profiles", "router")
"""Folders that hold what is compiled, and all that it imports but for `BESIDE`."""
BESIDE = (Path("clients", "network", "frame_bits.py"),)
"""Modules of other folders that it imports: their constants are in the build."""
VARIABLE = "FERMATA_COMPILED"
USE = {VARIABLE: "auto"}
"""Environment of a process that is to use a build, where there is one."""
LIBRARY = "fermata__mypyc"
"""Name of the one extension module that holds all others."""
NOT_ASKED, NO_BUILD = "not asked for", "there is no build"
MODULES = "modules.txt"
"""Names of the compiled modules, one a line."""


def source_mark(package: Path = PACKAGE) -> str:
    """Name the sources and the Python that runs them: a build is of one mark alone."""
    found = hashlib.sha256(f"{sys.version} {sysconfig.get_config_var('EXT_SUFFIX')}".encode())
    for path in source_files(package):
        found.update(f"\n{path.relative_to(package)}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def source_files(package: Path = PACKAGE) -> list[Path]:
    """List the sources that a build depends on; folders of the package may be links."""
    found = [package / each for each in BESIDE if (package / each).is_file()]
    for part in PARTS:
        for folder, _, names in os.walk(package / part, followlinks=True):
            found += [Path(folder) / name for name in names if name.endswith(".py")]
    return sorted(found)


def builds_folder() -> Path:
    """The folder of all builds: it belongs to the environment, and goes with it."""
    return Path(sys.prefix) / "fermata-compiled"


class NativeModules(MetaPathFinder, Loader):
    """Finds and loads the modules of one build."""

    def __init__(self, folder: Path) -> None:
        """Raises `OSError` or `ImportError` where the build cannot be used."""
        self.path = os.fspath(folder / f"{LIBRARY}{sysconfig.get_config_var('EXT_SUFFIX')}")
        self.names = frozenset((folder / MODULES).read_text().split())
        loader = ExtensionFileLoader(LIBRARY, self.path)
        spec = importlib.util.spec_from_loader(LIBRARY, loader)
        assert spec is not None
        self.library = importlib.util.module_from_spec(spec)
        # The modules look for it by its name.
        sys.modules[LIBRARY] = self.library
        missing = [name for name in self.names if not hasattr(self.library, _entry(name))]
        if missing:
            raise ImportError(f"{self.path} does not hold {missing[0]}")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        spec = ModuleSpec(fullname, self, origin=self.path)
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Call the module's entry, which runs its body too. mypyc would make an extension for each
        module that does no more than this."""
        entry = _entry(spec.name)
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype = ctypes.c_void_p
        pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
        pointer = pointer_of(getattr(self.library, entry), f"{LIBRARY}.{entry}".encode())
        module: ModuleType = ctypes.PYFUNCTYPE(ctypes.py_object)(pointer)()
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Have frozen dataclasses pickled as those of the sources are: mypyc leaves out what
        `slots=True` adds, and processes of both kinds send them to one another.

        The module's body has run, and native modules import one another without this finder: so
        all that are here by now are looked at.
        """
        for name in self.names & sys.modules.keys():
            for each in tuple(vars(sys.modules[name]).values()):
                if isinstance(each, type) and each.__module__ == name:
                    options = getattr(each, "__dataclass_params__", None)
                    if options is not None and options.frozen:
                        # The type is native, and so are its attributes to mypy.
                        made: Any = each
                        made.__getstate__, made.__setstate__ = _state, _set_state


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: Sequence[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


def _entry(module: str) -> str:
    return "init_" + module.replace(".", "___")


def install(environment: Mapping[str, str] = os.environ, builds: Path | None = None) -> str:
    """Have modules of this process native from now on, where its environment asks for that and
    there is a build; returns why not otherwise."""
    if not environment.get(VARIABLE):
        return NOT_ASKED
    if installed():
        return ""
    builds = builds_folder() if builds is None else builds
    folder = builds / source_mark()
    try:
        if not folder.is_dir():
            other = any(builds.glob("*/" + MODULES))
            return "the build is of other sources" if other else NO_BUILD
        modules = NativeModules(folder)
    except (OSError, ImportError) as error:
        return f"the build cannot be used: {error}"
    early = sorted(modules.names & sys.modules.keys())
    if early:
        return f"{early[0]} has been imported before"
    sys.meta_path.insert(0, modules)
    return ""


def installed() -> bool:
    """Whether modules of this process are native."""
    return any(isinstance(each, NativeModules) for each in sys.meta_path)
