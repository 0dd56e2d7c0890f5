"""Run times by batch size: warm-up, repeats within a time budget, percentiles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fermata.foundation.refusals import check_batches, check_positive
from fermata.profiles.monotone import Change, monotone
from fermata.profiles.profile import ms

B = TypeVar("B")
# With fewer runs the 99th percentile is just the maximum; more runs than this sharpen nothing.
RUNS_FOR_P99 = 100


class Device(Protocol):
    """Where batches run; bytes are 0 where the device cannot tell."""

    name: str

    def synchronize(self) -> None:
        """Wait until everything that was started has ended."""

    def used_bytes(self) -> int: ...

    def reset_peak(self) -> None: ...

    def peak_bytes(self) -> int:
        """The most that was used since `reset_peak`."""


@dataclass(frozen=True, slots=True)
class MeasureEffort:
    """How long to measure."""

    warm_up: int = 5
    """Runs thrown away: the first ones allocate memory and choose kernels."""
    runs_min: int = 10
    runs_max: int = 10 * RUNS_FOR_P99
    budget_ns: int = ms(3000)
    """For each batch size, warm-up included; `runs_min` runs are made whatever they take."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured batch size."""

    size: int
    p50_ns: int
    p99_ns: int
    runs: int
    dynamic_bytes: int
    """Held while the batch ran, beyond what was held before."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Measured rows as a profile wants them: nothing falls as batches grow."""

    batches: tuple[int, ...]
    p50_ns: tuple[int, ...]
    p99_ns: tuple[int, ...]
    dynamic_bytes: tuple[int, ...]
    runs: tuple[int, ...]
    raised_p50: tuple[Change, ...]
    raised_p99: tuple[Change, ...]


def measure(
    run: Callable[[B], object],
    make_batch: Callable[[int], B],
    batches: Sequence[int],
    device: Device,
    clock: Callable[[], int],
    effort: MeasureEffort | None = None,
    on_row: Callable[[Row], None] | None = None,
    renew: bool = False,
) -> Columns:
    """Percentiles of `run(make_batch(size))` for each size; `clock` counts nanoseconds.

    `make_batch` is not timed, so it may stage a batch on the device or capture a CUDA graph. It is
    called once a size, or with `renew` before every run, where a run uses its batch up.
    """
    check_batches("batches", batches)
    rows: list[Row] = []
    for size in batches:
        rows.append(
            _measure_size(run, make_batch, size, device, clock, effort or MeasureEffort(), renew)
        )
        if on_row is not None:
            on_row(rows[-1])
    p50_ns, raised_p50 = monotone([row.p50_ns for row in rows])
    # The raised p50 is the floor of p99, so that the tail stays at or above the median.
    p99_ns, raised_p99 = monotone([row.p99_ns for row in rows], p50_ns)
    dynamic, _ = monotone([row.dynamic_bytes for row in rows])
    return Columns(
        tuple(batches),
        tuple(map(int, p50_ns)),
        tuple(map(int, p99_ns)),
        tuple(map(int, dynamic)) if any(dynamic) else (),
        tuple(row.runs for row in rows),
        raised_p50,
        raised_p99,
    )


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The smallest value that `percent` of 100 values do not exceed (nearest rank)."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _measure_size(
    run: Callable[[B], object],
    make_batch: Callable[[int], B],
    size: int,
    device: Device,
    clock: Callable[[], int],
    effort: MeasureEffort,
    renew: bool,
) -> Row:
    device.synchronize()
    held = device.used_bytes()
    device.reset_peak()
    # Counted with the run: inputs, and what a captured graph sets aside.
    made = [make_batch(size)]
    end_at_ns = clock() + effort.budget_ns

    def took_ns() -> int:
        # None is made that is not run: it would keep what it was staged in for ever.
        batch = made.pop() if made else make_batch(size)
        started_ns = clock()
        run(batch)
        device.synchronize()
        if not renew:
            made.append(batch)
        return clock() - started_ns

    for _ in range(effort.warm_up):
        took_ns()
        if clock() >= end_at_ns:
            break
    # Read after the warm-up: allocators keep what the first runs took, so later ones show nothing.
    dynamic = max(0, device.peak_bytes() - held)
    taken: list[int] = []
    while len(taken) < effort.runs_min or (len(taken) < effort.runs_max and clock() < end_at_ns):
        taken.append(took_ns())
    taken.sort()
    check_positive(f"run time at batch {size}, in ns", taken[0])
    return Row(size, percentile(taken, 50), percentile(taken, 99), len(taken), dynamic)
