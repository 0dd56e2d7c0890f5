"""Turns raw H200 measurements into zoo tables: `python -m fermata.profiles.h200 RAW OUT_DIR`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.foundation.validation import Fields, fields, read_json
from fermata.profiles.monotone import monotone
from fermata.profiles.profile import Profile, ms
from fermata.profiles.store import BYTES_PER_MB, Table, save_file

MODES = ("eager", "graph")
ABOUT_KEYS = ("device", "torch", "torchvision", "dtype", "layout", "measured")
COLUMNS = tuple(f"{mode}_{column}_ms" for mode in MODES for column in ("p50", "p99"))
ROW_KEYS = ("model", "input", "static_mb", "load_ms", "swap_in_ms", "batches", "dynamic_mb")


@dataclass(frozen=True, slots=True)
class Raised:
    """One measured value that the import raised, so that latency never falls as batches grow."""

    table: str
    profile: str
    column: str
    batch: int
    before_ms: float
    after_ms: float

    def __str__(self) -> str:
        return (
            f"{self.table}/{self.profile} {self.column} at batch {self.batch}: "
            f"{self.before_ms} -> {self.after_ms} ms"
        )


@dataclass(frozen=True, slots=True)
class Import:
    """Profiles read from the raw file."""

    tables: tuple[Table, ...]
    raised: tuple[Raised, ...]
    unmeasured: tuple[str, ...]
    """TABLE/NAME of models whose column holds only nulls: left out, not made up."""


def import_file(path: Path) -> Import:
    """The tables `h200-eager` and `h200-graph` of a raw file, with what was changed."""
    where = f"{path}: "
    raw = fields(where, f"{where}file", read_json(path), (*ABOUT_KEYS, "profiles"))
    device = raw.text("device")
    about = ", ".join(raw.text(key) for key in ("dtype", "layout", "measured"))
    source = f"torch {raw.text('torch')}, torchvision {raw.text('torchvision')}, {about}"
    rows = [
        fields(f"{where}profiles[{index}].", f"{where}profiles[{index}]", row, ROW_KEYS + COLUMNS)
        for index, row in enumerate(raw.items("profiles"))
    ]
    if not rows:
        refuse(f"{where}profiles", rows, "must hold at least one measured model")
    made: list[Table] = []
    raised: list[Raised] = []
    unmeasured: list[str] = []
    for mode in MODES:
        table = f"h200-{mode}"
        profiles: list[Profile] = []
        for row in rows:
            if all(value is None for value in row.items(f"{mode}_p50_ms")):
                unmeasured.append(f"{table}/{row.text('model')}")
                continue
            profiles.append(_profile(row, mode, device, raised))
        kind = "CUDA graphs" if mode == "graph" else "eager mode"
        made.append(Table(table, device, f"{kind}, {source}", tuple(profiles)))
    return Import(tuple(made), tuple(raised), tuple(unmeasured))


def _profile(row: Fields, mode: str, device: str, raised: list[Raised]) -> Profile:
    name, batches = row.text("model"), row.integers("batches")
    columns: list[tuple[float, ...]] = []
    floor: tuple[float, ...] | None = None
    for column in ("p50", "p99"):
        measured = row.numbers(f"{mode}_{column}_ms")
        if len(measured) != len(batches):
            rule = f"has {len(measured)} values for {len(batches)} batch sizes"
            refuse(row.name(f"{mode}_{column}_ms"), measured, rule)
        # The raised p50 is the floor of p99, so that the tail stays at or above the median.
        floor, changes = monotone(measured, floor)
        columns.append(floor)
        raised += [
            Raised(f"h200-{mode}", name, column, batches[change.index], change.before, change.after)
            for change in changes
        ]
    p50_ms, p99_ms = columns
    return Profile(
        name,
        batches=tuple(batches),
        p50_ns=tuple(map(ms, p50_ms)),
        p99_ns=tuple(map(ms, p99_ms)),
        static_bytes=round(row.number("static_mb") * BYTES_PER_MB),
        dynamic_bytes=tuple(round(held * BYTES_PER_MB) for held in row.numbers("dynamic_mb")),
        load_ns=ms(row.number("load_ms")),
        swap_in_ns=ms(row.number("swap_in_ms")),
        input=row.text("input"),
        device=device,
    )


def _summary(table: Table, raised: Sequence[Raised]) -> str:
    total = sum(len(profile.p50_ns) + len(profile.p99_ns) for profile in table.profiles)
    factors = [
        change.after_ms / change.before_ms for change in raised if change.table == table.name
    ]
    return (
        f"{table.name}: {len(table.profiles)} profiles, {len(factors)} of {total} values raised, "
        f"the most by a factor of {max(factors, default=1.0):.2f}"
    )


def main(arguments: Sequence[str]) -> int:
    """Write the tables and print every value that was raised."""
    if len(arguments) != 2:
        print("usage: python -m fermata.profiles.h200 RAW OUT_DIR", file=sys.stderr)
        return 2
    try:
        result = import_file(Path(arguments[0]))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    folder = Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    for change in result.raised:
        print(change)
    for name in result.unmeasured:
        print(f"{name}: not measured, left out")
    for table in result.tables:
        # A table without rows could not be read back.
        if table.profiles:
            save_file(folder / f"{table.name}.json", table)
        print(_summary(table, result.raised))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
