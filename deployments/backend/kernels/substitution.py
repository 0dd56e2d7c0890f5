"""Runs another function in place of a network, for one thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def substituted(network: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Have calls of `network` from this thread run `function`; other threads see no difference.

    A model holds its network in functions of its own, which cannot be told to use another one.
    """
    mine = threading.get_ident()
    plain = network.forward
    own = "forward" in vars(network)

    def forward(*given: Any, **named: Any) -> Any:
        chosen = function if threading.get_ident() == mine else plain
        return chosen(*given, **named)

    network.forward = forward
    try:
        yield
    finally:
        if own:
            network.forward = plain
        else:
            del network.forward


def input_of(network: Any, run: Callable[[], Any]) -> Any:
    """The tensor that `run` calls the network with; None unless it does so once, with one."""
    seen: list[tuple[tuple[Any, ...], bool]] = []
    plain = network.forward

    def forward(*given: Any, **named: Any) -> Any:
        seen.append((given, bool(named)))
        return plain(*given, **named)

    with substituted(network, forward):
        run()
    if len(seen) != 1 or seen[0][1] or len(seen[0][0]) != 1:
        return None
    return seen[0][0][0]
