"""Even draws: which instance the next request goes to, by shares but not by chance."""

from typing import Any

GOLDEN = 0.6180339887498949
"""Multiples of it are as evenly spread modulo 1 as any can be, over every stretch of them."""


def even_draw(first: Any, number: Any) -> Any:
    """A number from 0 to 1 for the request of that number, for one or for whole arrays.

    The paper draws at random, so an instance's arrivals are as uneven as the whole. Evenly drawn,
    one that gets a tenth of the requests gets every tenth, or nearly, and its queue hardly varies.
    """
    return (first + number * GOLDEN) % 1.0
