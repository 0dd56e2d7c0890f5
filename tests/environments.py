"""Virtual environments with a small library each, whose versions conflict."""

import sysconfig
import venv
from pathlib import Path

import numpy as np

LIBRARY = "scales"
MODELS = '''
import os
import signal
import sys

import numpy as np
import scales


def plain(device):
    return lambda batch: batch.sum(axis=1, keepdims=True) * scales.FACTOR


def named():
    def model(given):
        ragged = [np.arange(len(row) + place) for place, row in enumerate(given["ids"])]
        return {"sum": given["ids"].sum(axis=1), "texts": given["note"], "ragged": ragged}

    return model


def sized(device, size):
    return lambda batch: np.full(len(batch), size)


def troubled():
    """What it does is what the first number of a batch says."""

    def model(batch):
        wish = int(batch.flat[0])
        if wish == 11:
            raise ValueError("the first\\nand the second line")
        if wish == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        if wish == 13:
            sys.exit(7)
        if wish == 14:
            raise MemoryError("too large")
        if wish == 15:
            os._exit(9)
        if wish == 16:
            return np.zeros(len(batch), complex)
        print("noise on the standard output")
        return np.full((len(batch), 1), os.getpid(), np.int64)

    return model


class Counter:
    """Keeps a count for each sequence."""

    def __init__(self):
        self.counts = {}

    def __call__(self, given):
        found = []
        for key, start in zip(given["sequence_id"].flat, given["sequence_start"].flat):
            self.counts[key] = 1 if start else self.counts[key] + 1
            found.append([self.counts[key]])
        return np.array(found)

    def end_sequences(self, ids):
        for key in ids:
            del self.counts[key]


def broken():
    raise RuntimeError("no weights")


def dying():
    os.kill(os.getpid(), signal.SIGSEGV)


nothing = 3
'''


def make_environment(folder: Path, factor: int, with_numpy: bool = True) -> str:
    """An environment whose `scales` has this factor; numpy is that of the tests."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = sysconfig.get_python_version()
    packages = folder / "lib" / f"python{version}" / "site-packages"
    library = packages / LIBRARY
    library.mkdir()
    (library / "__init__.py").write_text(f"FACTOR = {factor}\n")
    if with_numpy:
        (packages / "numpy.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    return str(folder)
