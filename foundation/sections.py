"""Sections of files as frozen dataclasses, whose types say how options are read and written.

Each field is an option. A field in nanoseconds (`_ns`) is written in milliseconds (`_ms`).
`Annotated` adds limits, another key, or the one driver that uses the option.
"""

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Protocol, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as type_hints

from fermata.foundation.refusals import NUMBER_LIMIT, check_fraction, check_number, refuse
from fermata.foundation.units import ms
from fermata.foundation.validation import Fields, number
from fermata.foundation.validation import fields as read_fields

T = TypeVar("T")


class Mark(Enum):
    """Remarks on an option's type."""

    SERVED = "served only"
    """Simulations leave it alone."""
    SIMULATED = "simulated only"
    """Servers leave it alone."""
    RESOLVED = "in no file"
    """A driver fills it in."""
    MS = "milliseconds"
    """Nanoseconds in the field, milliseconds in the file."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers that an option takes."""

    low: float = 0.0
    high: float = NUMBER_LIMIT
    ends: bool = True
    """Whether both ends are allowed."""

    def check(self, name: str, value: float) -> None:
        """Refuse a number beyond them."""
        if self.ends and self.high == 1.0:
            check_fraction(name, value)
        elif self.ends:
            check_number(name, value, self.low)
        elif not self.low < value < self.high:
            rule = f"must be a finite number above {self.low:g}, below {self.high:g}"
            refuse(name, value, rule)


@dataclass(frozen=True, slots=True)
class Key:
    """The option's name in files, where it is not the field's."""

    name: str


class Form(Protocol):
    """Reads and writes an option whose type alone does not say how."""

    @property
    def takes(self) -> str:
        """Values that a file may give, for the page of options."""

    def read(self, row: Fields, key: str) -> Any:
        """The value that is given."""

    def write(self, value: Any) -> object:
        """As plain values that `read` takes."""


Resolved = Annotated[T, Mark.RESOLVED]
Served = Annotated[T, Mark.SERVED]
Simulated = Annotated[T, Mark.SIMULATED]
Positive = Annotated[float, Limits(ends=False)]
NotNegative = Annotated[float, Limits()]
Fraction = Annotated[float, Limits(high=1.0)]
Whole = Annotated[int, Limits()]
Count = Annotated[int, Limits(low=1)]
Time = Annotated[int, Limits(), Mark.MS]
PositiveTime = Annotated[int, Limits(ends=False), Mark.MS]


@dataclass(frozen=True, slots=True)
class Option:
    """A field that files may set."""

    field: str
    key: str
    """In files."""
    kind: Any
    """Its type, with remarks."""
    default: Any
    """MISSING where it has to be given."""
    marks: tuple[Any, ...]
    form: Form | None

    @property
    def may_be_absent(self) -> bool:
        """Whether the default stands for none: None, no text, or a number beyond the limits."""
        if self.default in (None, ""):
            return True
        limits = [each for each in self.marks if isinstance(each, Limits)]
        beyond = any(each.low > 0 or not each.ends for each in limits)
        return self.default == 0 and beyond

    def read(self, row: Fields) -> Any:
        """The value in a row that has it."""
        if self.form is not None:
            return self.form.read(row, self.key)
        value, name = row.data[self.key], row.name(self.key)
        if value is None and self.may_be_absent:
            return self.default
        if self.default is MISSING and value == "":
            refuse(name, value, "must be a string that is not empty")
        return _read(row, name, value, self.kind)

    def write(self, value: Any, without: Mark | None = None) -> object:
        """The value as `read` takes it; None where there is none."""
        if value == self.default and self.may_be_absent:
            return None
        return _written(value, self.kind, without) if self.form is None else self.form.write(value)


def options(section: type[Any]) -> tuple[Option, ...]:
    """Every option of a section, which is a dataclass."""
    found: list[Option] = []
    hints = type_hints(section, include_extras=True)
    for field in fields(section):
        kind = hints[field.name]
        _, marks = _unwrapped(kind)
        if Mark.RESOLVED in marks:
            continue
        key = next((each.name for each in marks if isinstance(each, Key)), "")
        form = next((each for each in marks if hasattr(each, "takes")), None)
        factory = field.default_factory
        default = field.default if factory is MISSING else factory()
        name = key or field.name.replace("_ns", "_ms")
        found.append(Option(field.name, name, kind, default, marks, form))
    return tuple(found)


def keys(section: type) -> tuple[str, ...]:
    """Keys that a file may have in a section."""
    return tuple(option.key for option in options(section))


def read_section(section: type[T], row: Fields, **resolved: Any) -> T:
    """The section in a row, every value checked; `resolved` goes before the row."""
    values = dict(resolved)
    for option in options(section):
        if option.field in values:
            continue
        if row.has(option.key):
            values[option.field] = option.read(row)
        elif option.default is MISSING:
            refuse(row.name(option.key), None, "is needed")
    return section(**values)


def write_section(value: Any, without: Mark | None = None) -> object:
    """The section as plain values, less the options with that mark."""
    return {
        option.key: option.write(getattr(value, option.field), without)
        for option in options(type(value))
        if without not in option.marks
    }


def _unwrapped(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type, and what `Annotated` adds to it."""
    if hasattr(kind, "__metadata__"):
        return kind.__origin__, kind.__metadata__
    return kind, ()


def _read(row: Fields, name: str, value: object, annotated: Any) -> Any:
    """A value of this type, or a refusal."""
    kind, marks = _unwrapped(annotated)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (only,) = [each for each in inner if each is not type(None)]
        return None if value is None else _read(row, name, value, only)
    if origin is Literal:
        if not isinstance(value, str) or value not in inner:
            refuse(name, value, f"must be one of {', '.join(inner)}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            refuse(name, value, "must be a list")
        return tuple(
            _read(row, f"{name}[{index}]", each, inner[0]) for index, each in enumerate(value)
        )
    if origin is Mapping:
        if not isinstance(value, dict):
            refuse(name, value, "must be an object with named fields")
        return value
    if is_dataclass(kind) and isinstance(kind, type):
        return read_section(kind, read_fields(f"{name}.", name, value, keys(kind), row.beside))
    return _read_plain(name, value, kind, marks)


def _read_plain(name: str, value: object, kind: Any, marks: tuple[Any, ...]) -> object:
    if kind is bool:
        given = {"true": True, "false": False}.get(str(value).lower())
        if given is None:
            refuse(name, value, "must be true or false")
        return given
    if kind is str:
        if not isinstance(value, str):
            refuse(name, value, "must be a string")
        return value
    limits = next((each for each in marks if isinstance(each, Limits)), None)
    found = _read_number(name, value)
    if kind is int and Mark.MS not in marks:
        low = limits.low if limits else -NUMBER_LIMIT
        if found != found // 1 or not low <= found < NUMBER_LIMIT:
            refuse(name, value, f"must be a whole number of at least {low:g}")
        return int(found)
    (limits or Limits(low=-NUMBER_LIMIT)).check(name, found)
    return ms(found) if Mark.MS in marks else found


def _read_number(name: str, value: object) -> float:
    """A number, which may stand in quotes."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            refuse(name, value, "must be a number")
    return number(name, value)


def _written(value: Any, annotated: Any, without: Mark | None) -> object:
    """A value of this type as plain values."""
    kind, marks = _unwrapped(annotated)
    origin, inner = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if origin in (Union, types.UnionType):
        (only,) = [each for each in inner if each is not type(None)]
        return _written(value, only, without)
    if Mark.MS in marks:
        return value / 1e6
    if isinstance(value, tuple):
        return [_written(each, inner[0], without) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return write_section(value, without)
    return dict(value) if isinstance(value, Mapping) else value
