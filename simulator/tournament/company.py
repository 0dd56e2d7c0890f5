"""The largest batch that each request can have company for, whatever a policy does.

A batch starts after the last of its requests has come, and ends within one SLO of the first. So all
of them come within the SLO less the batch's run time.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


def largest_batches(at_ns: Counts, rows: Counts, slo_ns: int, run_ns: Sequence[int]) -> Counts:
    """By request of one application, in order of arrival; 0 where none ends in time.

    `run_ns` are the least run times of batches of 1, 2 and so on.
    """
    largest = np.zeros(len(at_ns), np.int64)
    rows_before = np.concatenate([[0], np.cumsum(rows)])
    until = np.searchsorted(at_ns, at_ns, "right")
    for size, time_ns in enumerate(run_ns, 1):
        # The span that ends with each request.
        since = np.searchsorted(at_ns, at_ns - (slo_ns - time_ns), "left")
        enough = rows_before[until] - rows_before[since] >= size
        if time_ns > slo_ns or not enough.any():
            continue
        covered = np.zeros(len(at_ns) + 1, np.int64)
        np.add.at(covered, since[enough], 1)
        np.add.at(covered, until[enough], -1)
        largest[np.cumsum(covered[:-1]) > 0] = size
    return largest
