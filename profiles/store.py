"""Profiles as JSON: one schema, read strictly, and the zoo of tables that ship with us."""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import (
    check_fraction,
    check_linear,
    check_number,
    check_table,
    refuse,
)
from fermata.foundation.validation import Fields, fields, read_json
from fermata.profiles.profile import Profile, ms

SCHEMA = 1
ZOO = Path(__file__).parent / "zoo"
NS_PER_MS = 10**6
# Model sizes are counted in binary megabytes by torch and by the papers: VGG16's 138.4 M float32
# are "528 MB".
BYTES_PER_MB = 2**20

FILE_KEYS = ("schema", "table", "device", "source", "profiles")
LINEAR_KEYS = ("alpha_ms", "beta_ms")
TABLE_KEYS = ("batches", "p50_ms", "p99_ms")
MEMORY_KEYS = ("static_mb", "dynamic_mb", "file_mb", "load_ms", "swap_in_ms")
QUALITY_KEYS = ("accuracy", "recall", "confusion", "input", "slo_ms")
PROFILE_KEYS = ("name", *LINEAR_KEYS, *TABLE_KEYS, *MEMORY_KEYS, *QUALITY_KEYS)


@dataclass(frozen=True, slots=True)
class Table:
    """The profiles of one file: models measured on one device by one source."""

    name: str
    device: str
    source: str
    profiles: tuple[Profile, ...]

    def find(self, name: str) -> Profile:
        """The profile of that name, or a ConfigError with the closest names."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        raise ConfigError(
            f"no profile {name!r} in {self.name}; "
            + _suggest(name, [profile.name for profile in self.profiles])
        )


def load_file(path: Path | str) -> Table:
    """The table in a file, every field checked."""
    path = Path(path)
    where = f"{path}: "
    top = fields(where, f"{where}file", read_json(path), FILE_KEYS)
    schema = top.data.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        refuse(f"{where}schema", schema, f"must be {SCHEMA}, the only one this version reads")
    device = top.text("device")
    rows = top.items("profiles")
    if not rows:
        refuse(f"{where}profiles", rows, "must hold at least one profile")
    profiles: list[Profile] = []
    seen: set[str] = set()
    for index, row in enumerate(rows):
        label = f"{where}profiles[{index}]"
        profile = read_profile(fields(f"{label}.", label, row, PROFILE_KEYS), device)
        if profile.name in seen:
            refuse(f"{label}.name", profile.name, "is used twice; rename one of the two")
        seen.add(profile.name)
        profiles.append(profile)
    return Table(top.text("table"), device, top.text("source", ""), tuple(profiles))


def save_file(path: Path | str, table: Table) -> None:
    """Write a table so that `load_file` gives it back; one profile a line, for readable diffs."""
    head = {"schema": SCHEMA, "table": table.name, "device": table.device, "source": table.source}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    rows = ",\n".join(f"  {json.dumps(profile_row(profile))}" for profile in table.profiles)
    text = "\n".join(["{", *lines, ' "profiles": [', rows, " ]", "}"])
    Path(path).write_text(text + "\n", encoding="utf-8")


def tables(folder: Path = ZOO) -> list[str]:
    """Names of the tables in a folder, by default the zoo's."""
    return sorted(path.stem for path in folder.glob("*.json"))


def load_table(name: str, folder: Path = ZOO) -> Table:
    """A table by name, or a ConfigError with the closest names."""
    known = tables(folder)
    if name not in known:
        raise ConfigError(f"no table {name!r} in {folder}; {_suggest(name, known)}")
    path = folder / f"{name}.json"
    table = load_file(path)
    if table.name != name:
        refuse(f"{path}: table", table.name, f"must be {name!r}, the file's name")
    return table


def find(name: str, folder: Path = ZOO) -> Profile:
    """A profile by TABLE/NAME, or by NAME alone where only one table holds it."""
    table_name, slash, model = name.rpartition("/")
    if slash:
        return load_table(table_name, folder).find(model)
    known = {
        f"{table}/{profile.name}": profile
        for table in tables(folder)
        for profile in load_table(table, folder).profiles
    }
    matches = [full for full, profile in known.items() if profile.name == name]
    if len(matches) == 1:
        return known[matches[0]]
    if matches:
        raise ConfigError(
            f"profile {name!r} is in {len(matches)} tables; say {' or '.join(matches)}"
        )
    names = sorted({profile.name for profile in known.values()})
    raise ConfigError(f"no profile {name!r} in {folder}; {_suggest(name, names)}")


def _suggest(name: str, known: Iterable[str]) -> str:
    # Tables spell one model differently (ResNet50, resnet50), so letter case must not count.
    spellings: dict[str, list[str]] = {}
    for other in known:
        spellings.setdefault(other.lower(), []).append(other)
    close = difflib.get_close_matches(name.lower(), spellings, n=3)
    if close:
        return "close: " + ", ".join(other for key in close for other in spellings[key])
    names = [other for group in spellings.values() for other in group]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"known: {', '.join(names[:8]) or 'none'}{more}"


def read_profile(row: Fields, device: str) -> Profile:
    """One profile of a file, every field checked."""
    name = row.text("name")
    if "/" in name:
        refuse(row.name("name"), name, "must not hold '/', which parts TABLE/NAME")
    batches, p50_ms, p99_ms, linear_ms = _read_latency(row)
    recall = row.numbers("recall")
    for index, fraction in enumerate(recall):
        check_fraction(f"{row.name('recall')}[{index}]", fraction)
    slo_ms = row.positive("slo_ms")
    dynamic_bytes = _read_dynamic(row, len(batches))
    static_mb, file_mb = row.number("static_mb", 0), row.number("file_mb", 0)
    load_ms, swap_in_ms = row.number("load_ms", 0), row.number("swap_in_ms", 0)
    accuracy, shape = row.fraction("accuracy"), row.text("input", "")
    try:
        return Profile(
            name,
            batches=tuple(batches),
            p50_ns=tuple(map(ms, p50_ms)),
            p99_ns=tuple(map(ms, p99_ms)),
            linear_ns=linear_ms and (ms(linear_ms[0]), ms(linear_ms[1])),
            static_bytes=_bytes(static_mb),
            dynamic_bytes=dynamic_bytes,
            file_bytes=_bytes(file_mb),
            load_ns=ms(load_ms),
            swap_in_ns=ms(swap_in_ms),
            accuracy=accuracy,
            recall=tuple(recall),
            confusion=_read_confusion(row),
            input=shape,
            device=device,
            slo_ns=None if slo_ms is None else ms(slo_ms),
        )
    except ConfigError as error:
        # A value may fit in its unit and not in ours: 1e-9 ms rounds to 0 ns.
        raise ConfigError(f"{row.where.rstrip('.')}: {error}") from None


def _read_confusion(row: Fields) -> tuple[tuple[int, ...], ...]:
    matrix: list[tuple[int, ...]] = []
    for index, counts in enumerate(row.items("confusion")):
        name = f"{row.name('confusion')}[{index}]"
        if not isinstance(counts, list):
            refuse(name, counts, "must be a list of counts")
        for count in counts:
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                refuse(name, counts, "must hold whole numbers from 0 up")
        matrix.append(tuple(counts))
    return tuple(matrix)


def _read_latency(
    row: Fields,
) -> tuple[list[int], list[float], list[float], tuple[float, float] | None]:
    """Batches, p50, p99 in ms and no line; or empty columns and a line."""
    if any(row.has(key) for key in LINEAR_KEYS):
        for key in TABLE_KEYS:
            if row.has(key):
                refuse(
                    row.name(key), row.data[key], "give a table or alpha_ms and beta_ms, not both"
                )
        alpha_ms, beta_ms = row.number("alpha_ms"), row.number("beta_ms")
        check_linear(row.where, "ms", alpha_ms, beta_ms)
        return [], [], [], (alpha_ms, beta_ms)
    batches, p50_ms = row.integers("batches"), row.numbers("p50_ms")
    p99_ms = row.numbers("p99_ms") if row.has("p99_ms") else p50_ms
    check_table(row.where, "ms", batches, p50_ms, p99_ms)
    return batches, p50_ms, p99_ms, None


def _read_dynamic(row: Fields, count: int) -> tuple[int, ...]:
    """One value for all sizes, or a list with one for each batch size."""
    if not isinstance(row.data.get("dynamic_mb", []), list):
        return (_bytes(row.number("dynamic_mb")),)
    values = row.numbers("dynamic_mb")
    if len(values) not in (0, count):
        rule = f"has {len(values)} values for {count} batch sizes; one number holds for all"
        refuse(row.name("dynamic_mb"), values, rule)
    for index, value in enumerate(values):
        check_number(f"{row.name('dynamic_mb')}[{index}]", value)
    return tuple(map(_bytes, values))


def _bytes(megabytes: float) -> int:
    return round(megabytes * BYTES_PER_MB)


def _shortest(value: int, unit: int) -> float:
    """The shortest decimal number of `unit`s that reads back as `value`."""
    if value % unit == 0:
        return value // unit
    for digits in range(1, 10):
        short = round(value / unit, digits)
        if round(short * unit) == value:
            return short
    return value / unit


def profile_row(profile: Profile, device: str = "") -> object:
    """The JSON object of a profile, without what is unknown."""

    def in_ms(value_ns: int) -> float:
        return _shortest(value_ns, NS_PER_MS)

    def in_mb(value_bytes: int) -> float:
        return _shortest(value_bytes, BYTES_PER_MB)

    dynamic_mb = list(map(in_mb, profile.dynamic_bytes))
    line = [] if profile.linear_ns is None else list(map(in_ms, profile.linear_ns))
    row = {
        "name": profile.name,
        "input": profile.input,
        **dict(zip(LINEAR_KEYS, line, strict=False)),
        "slo_ms": in_ms(profile.slo_ns or 0),
        "file_mb": in_mb(profile.file_bytes),
        "static_mb": in_mb(profile.static_bytes),
        "load_ms": in_ms(profile.load_ns),
        "swap_in_ms": in_ms(profile.swap_in_ns),
        "recall": list(profile.recall),
        "confusion": [list(each) for each in profile.confusion],
        "batches": list(profile.batches),
        "p50_ms": list(map(in_ms, profile.p50_ns)),
        "p99_ms": list(map(in_ms, profile.p99_ns)),
        "dynamic_mb": dynamic_mb[0] if len(dynamic_mb) == 1 else dynamic_mb,
        "accuracy": profile.accuracy,
        "device": device,
    }
    # Zero and empty are the defaults of all of these; beta and accuracy may truly be zero.
    zeros = ("beta_ms", "accuracy")
    return {key: each for key, each in row.items() if each or (key in zeros and each is not None)}
