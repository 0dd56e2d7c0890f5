"""Whether the accelerator of this process still works, once something has failed on it."""

import sys
from typing import Any


def run_small_kernel() -> None:
    """Raises where this process has used a GPU through torch and cannot any more.

    After an illegal address or a failed assertion in a kernel every further call of that process
    fails, until it is replaced; the GPU itself is well.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # `item` waits for the result, so that the error comes here.
        torch.zeros(1, device="cuda").add_(1).item()
