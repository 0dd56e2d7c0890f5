"""Utility of a run (SneakPeek Eq. 2), counting real correctness."""

import numpy as np
import numpy.typing as npt

from fermata.router.policies.sneakpeek.penalty import Penalty
from fermata.simulator.run import DROPPED, RunLog

Values = npt.NDArray[np.float64]


def right_answers(log: RunLog) -> npt.NDArray[np.bool_]:
    """Whether each request got the right answer, however late."""
    contents = log.contents
    assert contents is not None, "the run does not know what its requests held"
    rows = np.arange(len(log.end_ns))
    first = np.array(log.first_variant)
    local = np.maximum(log.variant - first[log.arrivals.application], 0)
    right: npt.NDArray[np.bool_] = contents.right[rows, local]
    for rid, label in log.answers.items():
        right[rid] = label == contents.label[rid]
    right[log.end_ns == DROPPED] = False
    return right


def utilities(log: RunLog, right: npt.NDArray[np.bool_], penalty: Penalty) -> Values:
    """Utility of each request: 1 for a right answer, less the penalty where it came late."""
    span_ns = log.arrivals.slo_ns
    lateness = (log.end_ns - log.arrivals.at_ns - span_ns) / span_ns
    found = right.astype(np.float64)
    for rid in np.flatnonzero(right & (lateness > 0)).tolist():
        found[rid] *= 1.0 - penalty(min(1.0, float(lateness[rid])))
    return found
