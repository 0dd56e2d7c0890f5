"""Rules that every profile obeys, stated once for values in ns (code) and in ms (files)."""

from collections.abc import Sequence
from typing import NoReturn

from fermata.foundation.errors import ConfigError

# 11 days of nanoseconds, a petabyte: what is larger is a mistake. NaN fails the comparison too.
NUMBER_LIMIT = 1e15


def in_one_line(text: str) -> str:
    """Escape characters that a terminal or a log would not show; keys are anybody's."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def refuse(field: str, value: object, rule: str) -> NoReturn:
    """Raise a ConfigError of one line: field, value, what is allowed."""
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    raise ConfigError(in_one_line(f"{field}={shown}: {rule}"))


def check_number(field: str, value: float, low: float = 0.0) -> None:
    """Refuse NaN, infinities and anything below `low`."""
    if not low <= value < NUMBER_LIMIT:
        refuse(field, value, f"must be a finite number of at least {low:g}, below {NUMBER_LIMIT:g}")


def check_positive(field: str, value: float) -> None:
    """Refuse NaN, infinities, zero and negative values."""
    if not 0 < value < NUMBER_LIMIT:
        refuse(field, value, f"must be a finite number above 0, below {NUMBER_LIMIT:g}")


def check_fraction(field: str, value: float) -> None:
    """Refuse what is not a fraction; a percentage is the usual mistake."""
    if not 0 <= value <= 1:
        refuse(field, value, "must be a fraction from 0 to 1; divide a percentage by 100")


def check_linear(where: str, unit: str, alpha: float, beta: float) -> None:
    """Refuse a line that does not rise, or that starts below zero."""
    check_positive(f"{where}alpha_{unit}", alpha)
    check_number(f"{where}beta_{unit}", beta)


def check_table(
    where: str, unit: str, batches: Sequence[int], p50: Sequence[float], p99: Sequence[float]
) -> None:
    """Refuse a latency table that is empty, uneven, non-positive or decreasing."""
    check_batches(f"{where}batches", batches)
    for column, values in (("p50", p50), ("p99", p99)):
        check_latencies(f"{where}{column}_{unit}", values, batches)
    for index, (typical, tail) in enumerate(zip(p50, p99, strict=True)):
        if tail < typical:
            refuse(f"{where}p99_{unit}[{index}]", tail, f"must be at least its p50, {typical!r}")


def check_batches(field: str, batches: Sequence[int]) -> None:
    """Refuse sizes that are empty, do not start at 1, or do not ascend."""
    if not batches:
        refuse(field, list(batches), "must list at least one batch size")
    if batches[0] != 1:
        refuse(f"{field}[0]", batches[0], "must be 1: a single request has to have a latency")
    for index in range(1, len(batches)):
        if batches[index] <= batches[index - 1]:
            rule = f"must be above the size before it, {batches[index - 1]}; sort the columns"
            refuse(f"{field}[{index}]", batches[index], rule)


def check_latencies(field: str, values: Sequence[float], batches: Sequence[int]) -> None:
    """Refuse a column of another length than `batches`, or one that falls as batches grow."""
    if len(values) != len(batches):
        refuse(field, list(values), f"has {len(values)} values for {len(batches)} batch sizes")
    for index, value in enumerate(values):
        check_positive(f"{field}[{index}]", value)
        if index and value < values[index - 1]:
            rule = (
                f"must be at least {values[index - 1]!r}, the latency at batch "
                f"{batches[index - 1]}; take the running maximum of measured values"
            )
            refuse(f"{field}[{index}]", value, rule)
