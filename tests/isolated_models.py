"""A user's module of models, which needs a library that the tests' own environment lacks."""

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
