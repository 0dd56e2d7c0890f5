"""Clients' networks, as a scenario says them: traces of bandwidth and sizes of frames."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from pathlib import Path

from fermata.clients.network.emulated_link import BandwidthTrace
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import check_positive, refuse
from fermata.foundation.units import ms, seconds
from fermata.foundation.validation import Fields, fields

NETWORK_KEYS = ("traces", "frames", "round_trip_ms", "adaptation")
TRACE_KEYS = ("mbps", "step_s", "file")
ADAPTATIONS = ("advised", "throughput")
UNEVEN_S = 1e-3
"""Steps of a trace that differ by less are equal: recorders round their times."""
STEPS_MAX = 10**6
"""Equal steps that a trace with uneven ones may be cut into."""


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """The network between clients and server."""

    traces: Mapping[str, BandwidthTrace]
    frame_bits: Mapping[int, float]
    """By the side of the frame: what clients may send."""
    round_trip_ns: int
    adaptation: str
    """`advised`: the side the server asks for; `throughput`: the largest that keeps up."""


def read_network(top: Fields) -> NetworkSpec | None:
    """The `network` section; None where there is none."""
    if not top.has("network"):
        return None
    row = top.inner("network", NETWORK_KEYS)
    traces = {
        name: read_trace(fields(f"network.traces.{name}.", f"traces.{name}", trace, TRACE_KEYS))
        for name, trace in row.mapping("traces").items()
    }
    if not traces:
        refuse("network.traces", {}, "must hold at least one trace of bandwidth")
    return NetworkSpec(
        traces,
        _read_frames(row),
        ms(row.number("round_trip_ms", 2)),
        row.choice("adaptation", ADAPTATIONS, "advised"),
    )


def read_trace(row: Fields) -> BandwidthTrace:
    """A trace given as a list or as a file."""
    if row.has("file"):
        mbps, step_s = _even_steps(row.text("file"))
    else:
        mbps, step_s = row.numbers("mbps"), row.positive("step_s") or 1.0
    if not mbps:
        refuse(row.name("mbps"), mbps, "must hold at least one bandwidth in Mbit/s")
    for index, value in enumerate(mbps):
        check_positive(f"{row.name('mbps')}[{index}]", value)
    return BandwidthTrace(tuple(value * 1e6 for value in mbps), seconds(step_s))


def _even_steps(path: str) -> tuple[list[float], float]:
    """The bandwidths of a file and the step between them. Where its steps differ, it is read in
    the longest that they all are multiples of, rounded to milliseconds."""
    table = read_csv(path, ("t_s", "mbps"))
    mbps = [values[1] for values in table]
    steps_s = [later[0] - earlier[0] for earlier, later in pairwise(table)] or [1.0]
    for step_s in steps_s:
        check_positive(f"{path}: step of t_s", step_s)
    if max(steps_s) - min(steps_s) < UNEVEN_S:
        return mbps, steps_s[0]
    steps_ms = [max(1, round(1000 * step_s)) for step_s in steps_s]
    # Nothing says how long the last bandwidth holds: as long as the one before.
    steps_ms.append(steps_ms[-1])
    step_ms = gcd(*steps_ms)
    if sum(steps_ms) > STEPS_MAX * step_ms:
        refuse(f"{path}: steps", sum(steps_ms) // step_ms, f"must be {STEPS_MAX} at most")
    even = [
        value for value, each in zip(mbps, steps_ms, strict=True) for _ in range(each // step_ms)
    ]
    return even, step_ms / 1000


def _read_frames(row: Fields) -> dict[int, float]:
    value = row.data.get("frames")
    if isinstance(value, str):
        # The authors' table counts kbit of 1024 bits.
        table = read_csv(value, ("input_size", "frame_kbit"))
        return {int(side): kbit * 1024 for side, kbit in table}
    frames: dict[int, float] = {}
    for side, bits in row.mapping("frames").items():
        if not str(side).isdecimal() or not isinstance(bits, int | float):
            refuse(f"network.frames.{side}", bits, "must be bits by side, or name a CSV file")
        check_positive(f"network.frames.{side}", bits)
        frames[int(side)] = float(bits)
    if not frames:
        refuse("network.frames", value, "must give bits by side, or name a CSV file")
    return frames


def read_csv(path: str, columns: tuple[str, ...]) -> list[tuple[float, ...]]:
    """Columns of a CSV file with a header, as numbers."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            return [
                tuple(float(line[column]) for column in columns) for line in csv.DictReader(file)
            ]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a CSV file") from None
    except (KeyError, TypeError, ValueError) as error:
        wanted = ", ".join(columns)
        raise ConfigError(f"{path}: {error} is wrong; give columns {wanted} of numbers") from None
