"""How requests arrive, as a scenario says it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fermata.foundation.refusals import check_number, check_positive, refuse
from fermata.foundation.units import SECOND, seconds
from fermata.foundation.validation import Fields

PROCESSES = ("poisson", "gamma", "map", "trace", "periodic")
PHASES = ("locked", "staggered", "random")
KEYS = {
    "poisson": ("process",),
    "gamma": ("process", "shape"),
    "map": ("process", "d0", "d1"),
    "trace": ("process", "rps", "step_s", "applications"),
    "periodic": ("process", "phase"),
}
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class ArrivalSpec:
    """One process for each application, all of the same kind."""

    process: str = "poisson"
    shape: float = 1.0
    """Shape of Gamma-distributed gaps; below 1 they are bursty."""
    d0: Matrix = ()
    """Markovian arrivals: rates per second of phase changes without an arrival."""
    d1: Matrix = ()
    """The same with an arrival."""
    rps: tuple[float, ...] = ()
    """A trace: the whole rate step by step, wrapping at the end."""
    step_ns: int = SECOND
    rps_of: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Traces of single applications, by name; they take no part in the whole rate."""
    phase: str = "locked"
    """Periodic streams: `locked` all send at once, `staggered` in turn, `random` when they may."""


def read_arrivals(top: Fields) -> ArrivalSpec:
    """The `arrivals` section, every value checked."""
    every_key = sorted({key for keys in KEYS.values() for key in keys})
    process = top.inner("arrivals", every_key).choice("process", PROCESSES, "poisson")
    row = top.inner("arrivals", KEYS[process])
    if process == "gamma":
        shape = row.number("shape")
        check_positive(row.name("shape"), shape)
        return ArrivalSpec(process, shape=shape)
    if process == "map":
        return _read_map(row)
    if process == "trace":
        return _read_trace(row)
    if process == "periodic":
        return ArrivalSpec(process, phase=row.choice("phase", PHASES, "locked"))
    return ArrivalSpec(process)


def _read_trace(row: Fields) -> ArrivalSpec:
    step_s = row.positive("step_s") or 1.0
    if seconds(step_s) < 1:
        refuse(row.name("step_s"), step_s, "must be at least a nanosecond")
    named = row.mapping("applications")
    own = Fields(f"{row.name('applications')}.", named)
    rps_of = {name: _read_rates(own, name) for name in named}
    rps = _read_rates(row, "rps") if row.has("rps") or not rps_of else ()
    return ArrivalSpec("trace", rps=rps, step_ns=seconds(step_s), rps_of=rps_of)


def _read_rates(row: Fields, key: str) -> tuple[float, ...]:
    rps = row.numbers(key)
    for index, rate in enumerate(rps):
        check_number(f"{row.name(key)}[{index}]", rate)
    if sum(rps) <= 0:
        refuse(row.name(key), rps, "must hold at least one rate above 0")
    return tuple(rps)


def _read_map(row: Fields) -> ArrivalSpec:
    d0, d1 = _read_matrix(row, "d0"), _read_matrix(row, "d1")
    if len(d0) != len(d1):
        refuse(row.name("d1"), d1, f"must have as many rows as d0, {len(d0)}")
    for index, (silent, arriving) in enumerate(zip(d0, d1, strict=True)):
        total = sum(silent) + sum(arriving)
        if not all(math.isfinite(rate) for rate in (*silent, *arriving)):
            refuse(row.name(f"d0[{index}]"), silent, "rates must be finite, in d0 and d1")
        if silent[index] >= 0:
            refuse(row.name(f"d0[{index}][{index}]"), silent[index], "must be below 0: a way out")
        off_diagonal = [rate for column, rate in enumerate(silent) if column != index]
        if min([*off_diagonal, *arriving, 0.0]) < 0:
            refuse(row.name(f"d0[{index}]"), silent, "rates off d0's diagonal must be 0 or more")
        if abs(total) > 1e-6 * max(1.0, abs(silent[index])):
            refuse(row.name(f"d0[{index}]"), silent, f"with d1 must sum to 0, not {total:g}")
    if not any(rate > 0 for arriving in d1 for rate in arriving):
        refuse(row.name("d1"), d1, "must hold at least one rate above 0")
    return ArrivalSpec("map", d0=d0, d1=d1)


def _read_matrix(row: Fields, key: str) -> Matrix:
    lines = row.items(key)
    matrix: list[tuple[float, ...]] = []
    for index, line in enumerate(lines):
        numbers = Fields(f"{row.name(key)}", {f"[{index}]": line}).numbers(f"[{index}]")
        if len(numbers) != len(lines):
            refuse(f"{row.name(key)}[{index}]", line, f"must hold {len(lines)} rates")
        matrix.append(tuple(numbers))
    if not matrix:
        refuse(row.name(key), lines, "must be a square matrix of rates per second")
    return tuple(matrix)
