"""The digits classifier with its trained weights, at the pace of a large model: as `model:` in a
configuration, `benchmarks.heavy_digits:load`. A small machine can then be loaded to the brim."""

import time
from collections.abc import Callable
from typing import Any

from fermata.deployments.models.catalog import open_model

ALPHA_MS, BETA_MS = 18.0, 20.0


def load() -> Callable[[Any], Any]:
    """Loads the weights anew each time, as a backend that gets the model does."""
    model: Any = open_model("digits:xl", "cpu")

    def run(batch: Any) -> Any:
        ends_s = time.perf_counter() + (BETA_MS + ALPHA_MS * len(batch)) / 1e3
        answer = model(batch)
        time.sleep(max(0.0, ends_s - time.perf_counter()))
        return answer

    return run
