"""The cost of one model on one device: latency by batch size, memory, load times, accuracy."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import (
    check_fraction,
    check_linear,
    check_number,
    check_positive,
    check_table,
    refuse,
)


def ms(value: float) -> int:
    """Milliseconds, as files and users write them, in integer nanoseconds."""
    return round(value * 1e6)


@dataclass(frozen=True, slots=True)
class Profile:
    """Either a table of latencies at `batches`, or a line `linear_ns` without end."""

    name: str
    batches: tuple[int, ...] = ()
    """Measured sizes, ascending from 1; empty for a line."""
    p50_ns: tuple[int, ...] = ()
    p99_ns: tuple[int, ...] = ()
    """Same length as `p50_ns`, and equal to it where only one column is known."""
    linear_ns: tuple[int, int] | None = None
    """(alpha, beta) of alpha * size + beta."""
    static_bytes: int = 0
    """Held while the model is loaded; 0 where unknown."""
    dynamic_bytes: tuple[int, ...] = ()
    """Held while a batch runs: one value for each of `batches`, one for all sizes, or unknown."""
    file_bytes: int = 0
    load_ns: int = 0
    """To make a model ready that the backend has not held before; 0 where unknown."""
    swap_in_ns: int = 0
    """To bring a model back from host memory; 0 where unknown."""
    accuracy: float | None = None
    """Fraction from 0 to 1."""
    recall: tuple[float, ...] = ()
    """Fraction for each class, in class order; empty where unknown."""
    confusion: tuple[tuple[int, ...], ...] = ()
    """[true class][answered class]: samples of the test set; empty where unknown."""
    input: str = ""
    """Contents of one request, e.g. `3x224` (channels x side) or `tokens 128`."""
    device: str = ""
    slo_ns: int | None = None
    """The SLO that the profile's source pairs it with."""

    def __post_init__(self) -> None:
        where = f"profile {self.name!r}: "
        if not self.name or "/" in self.name:
            refuse("profile name", self.name, "must not be empty, nor hold '/' (TABLE/NAME)")
        if self.linear_ns is None:
            check_table(where, "ns", self.batches, self.p50_ns, self.p99_ns)
        elif self.batches or self.p50_ns or self.p99_ns:
            refuse(f"{where}batches", list(self.batches), "must be empty where linear_ns is given")
        else:
            check_linear(where, "ns", *self.linear_ns)
        if len(self.dynamic_bytes) not in (0, 1, len(self.batches)):
            rule = f"must hold one value, or one for each of {len(self.batches)} batch sizes"
            refuse(f"{where}dynamic_bytes", list(self.dynamic_bytes), rule)
        for field in ("static_bytes", "file_bytes", "load_ns", "swap_in_ns"):
            check_number(f"{where}{field}", getattr(self, field))
        for index, held in enumerate(self.dynamic_bytes):
            check_number(f"{where}dynamic_bytes[{index}]", held)
        if self.accuracy is not None:
            check_fraction(f"{where}accuracy", self.accuracy)
        for index, fraction in enumerate(self.recall):
            check_fraction(f"{where}recall[{index}]", fraction)
        if self.slo_ns is not None:
            check_positive(f"{where}slo_ns", self.slo_ns)

    @property
    def batch_size_max(self) -> int | None:
        """The largest size with a known latency; None for a line, which has no end."""
        return self.batches[-1] if self.batches else None

    @property
    def input_size(self) -> int | None:
        """Side of the image in pixels, or length in tokens: the last number of `input`."""
        digits = self.input.replace("x", " ").split()
        return int(digits[-1]) if digits and digits[-1].isdecimal() else None

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of each class behind `recall`; empty where unknown."""
        return tuple(sum(row) for row in self.confusion)

    def latency_ns(self, size: int) -> int:
        """Median run time of a batch, interpolated between measured sizes."""
        return self._at(self.p50_ns, size)

    def latency_ns_p99(self, size: int) -> int:
        """Run time that 99 of 100 batches keep, interpolated between measured sizes."""
        return self._at(self.p99_ns, size)

    def table_ns(self, size_max: int) -> list[int]:
        """Median run times of sizes 1 to `size_max`, or to the table's end; [0] is size 1."""
        return self._spread(self.p50_ns, size_max)

    def table_ns_p99(self, size_max: int) -> list[int]:
        """99th percentiles of sizes 1 to `size_max`, or to the table's end; [0] is size 1."""
        return self._spread(self.p99_ns, size_max)

    def dynamic_bytes_at(self, size: int) -> int:
        """Memory that a running batch holds beside the model; 0 where unknown."""
        self._check_size(size)
        if len(self.dynamic_bytes) > 1:
            return interpolate(self.batches, self.dynamic_bytes, size)
        return self.dynamic_bytes[0] if self.dynamic_bytes else 0

    def _check_size(self, size: int) -> None:
        if size < 1:
            raise ConfigError(f"{self.name}: batch size {size} is below 1; ask for 1 or more")
        if self.batches and size > self.batches[-1]:
            raise ConfigError(
                f"{self.name}: batch size {size} is beyond the profile's end, {self.batches[-1]}; "
                "lower the batch size limit or profile larger batches"
            )

    def _at(self, column: tuple[int, ...], size: int) -> int:
        self._check_size(size)
        if self.linear_ns is not None:
            alpha_ns, beta_ns = self.linear_ns
            return alpha_ns * size + beta_ns
        return interpolate(self.batches, column, size)

    def _spread(self, column: tuple[int, ...], size_max: int) -> list[int]:
        end = min(size_max, self.batches[-1]) if self.batches else size_max
        self._check_size(end)
        return [self._at(column, size) for size in range(1, end + 1)]


def slowed(profile: Profile, factor: float) -> Profile:
    """The profile of the same model on a device that takes so many times as long."""
    if factor == 1.0:
        return profile
    line = profile.linear_ns
    return replace(
        profile,
        p50_ns=tuple(max(1, round(factor * each)) for each in profile.p50_ns),
        p99_ns=tuple(max(1, round(factor * each)) for each in profile.p99_ns),
        linear_ns=line and (max(1, round(factor * line[0])), round(factor * line[1])),
    )


def narrowed(profile: Profile, share: float) -> Profile:
    """The profile of the same model on inputs of this share of the size.

    The part of its run times that grows with the batch shrinks; what every batch takes stays.
    """
    if share == 1.0:
        return profile
    line, p50_ns = profile.linear_ns, _narrowed(profile.batches, profile.p50_ns, share)
    columns = zip(p50_ns, profile.p50_ns, profile.p99_ns, strict=True)
    return replace(
        profile,
        p50_ns=p50_ns,
        # Tails stay as long as they were, relative to the median.
        p99_ns=tuple(
            accumulate((max(own, own * tail // typical) for own, typical, tail in columns), max)
        ),
        linear_ns=line and (max(1, round(share * line[0])), line[1]),
    )


def _narrowed(batches: tuple[int, ...], column: tuple[int, ...], share: float) -> tuple[int, ...]:
    if len(column) < 2:
        return column
    slope = (column[-1] - column[0]) / (batches[-1] - batches[0])
    fixed_ns = max(0, min(*column, round(column[0] - slope * batches[0])))
    return tuple(max(1, fixed_ns + round(share * (each - fixed_ns))) for each in column)


def interpolate(sizes: Sequence[int], values: Sequence[int], size: int) -> int:
    """The value at `size`, which lies within `sizes`, rounded to the nearest integer."""
    right = bisect_left(sizes, size)
    if sizes[right] == size:
        return values[right]
    left = right - 1
    rise = (values[right] - values[left]) * (size - sizes[left])
    run = sizes[right] - sizes[left]
    # Integers only: a float would lose nanoseconds, and with them exact comparison.
    return values[left] + (2 * rise + run) // (2 * run)


def linear(
    name: str,
    alpha_ms: float,
    beta_ms: float,
    *,
    slo_ms: float | None = None,
    accuracy: float | None = None,
    recall: Sequence[float] = (),
    device: str = "",
) -> Profile:
    """A profile of alpha * size + beta; `dataclasses.replace` adds the rarer fields."""
    check_linear(f"profile {name!r}: ", "ms", alpha_ms, beta_ms)
    return Profile(
        name,
        linear_ns=(ms(alpha_ms), ms(beta_ms)),
        slo_ns=None if slo_ms is None else ms(slo_ms),
        accuracy=accuracy,
        recall=tuple(recall),
        device=device,
    )


def from_table_ms(
    name: str,
    latency_ms: Sequence[float],
    *,
    batches: Sequence[int] | None = None,
    p99_ms: Sequence[float] | None = None,
    slo_ms: float | None = None,
    accuracy: float | None = None,
    recall: Sequence[float] = (),
    device: str = "",
) -> Profile:
    """A profile of measured latencies, at `batches` or at sizes 1, 2, 3 and so on."""
    sizes = range(1, len(latency_ms) + 1) if batches is None else batches
    tails = latency_ms if p99_ms is None else p99_ms
    check_table(f"profile {name!r}: ", "ms", sizes, latency_ms, tails)
    return Profile(
        name,
        batches=tuple(sizes),
        p50_ns=tuple(map(ms, latency_ms)),
        p99_ns=tuple(map(ms, tails)),
        slo_ns=None if slo_ms is None else ms(slo_ms),
        accuracy=accuracy,
        recall=tuple(recall),
        device=device,
    )
