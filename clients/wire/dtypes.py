"""Data types of the Open Inference Protocol that numpy has too."""

from typing import Any

import numpy as np

NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""By the protocol's name; little-endian, as raw contents are."""
NAMES = {dtype: name for name, dtype in NUMPY.items()}
"""By type: asking numpy for a type's name takes 4 us, once for every request."""
