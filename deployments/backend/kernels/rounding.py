"""How far a network's answers move when it rounds otherwise: a yardstick for other ways."""

import copy
from collections.abc import Callable
from typing import Any


def in_32_bits(network: Any) -> Callable[..., Any] | None:
    """The same network in floats of 32 bits; None where it has no narrower ones."""
    import torch

    narrow = {torch.float16, torch.bfloat16}
    if not any(weight.dtype in narrow for weight in network.parameters()):
        return None
    wide = copy.deepcopy(network).float()

    def run(*given: Any) -> Any:
        return wide(*(each.float() if each.is_floating_point() else each for each in given))

    return run
