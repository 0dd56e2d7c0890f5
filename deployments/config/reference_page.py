"""Prints docs/configuration.md from the classes that read a configuration.

`python -m fermata.deployments.config.reference_page > docs/configuration.md`
"""

import ast
import inspect
import json
import textwrap
import types
from dataclasses import MISSING, dataclass, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from fermata.deployments.config.base import Section
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.foundation.refusals import NUMBER_LIMIT
from fermata.foundation.sections import Limits, Mark, Option, options

HEAD = """# Configuration

One YAML file describes a deployment: `fermata serve FILE`, `make serve CONFIG=FILE`, or under
`config` in the arguments of a Serve application. Unknown keys are refused, and so is what does not
fit together; the message names the key, the value and the remedy. Times are in milliseconds or
seconds, as the name says. Samples are in `deployments/*.yaml`.

`applications` is the same section in a [scenario](scenarios.md), and means the same there.
Options that are *served only* or *simulated only* may stand in either file; the other driver leaves
them alone.

This page is printed by `python -m fermata.deployments.config.reference_page` from the classes that
read the file.
"""
SYMBOLS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}
USES = (Mark.SERVED, Mark.SIMULATED)


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One line of the page."""

    key: str
    takes: str
    default: str
    meaning: str


def page() -> str:
    """The whole file."""
    parts = [HEAD]
    for section, where in sections():
        about = " ".join((section.__doc__ or "").split())
        parts.append(f"\n## {where or 'Top level'}\n\n{about}\n")
        parts.append("| key | takes | unless set | meaning |\n| --- | --- | --- | --- |")
        for row in rows(section):
            parts.append(f"| `{row.key}` | {row.takes} | {row.default} | {row.meaning} |")
    return "\n".join(parts) + "\n"


def sections() -> list[tuple[type, str]]:
    """Every section, each once, with where it stands."""
    found: list[tuple[type, str]] = []
    todo: list[tuple[type, str]] = [(DeploymentConfig, "")]
    while todo:
        section, where = todo.pop(0)
        if section in [each for each, _ in found]:
            continue
        found.append((section, where))
        for key, annotation in _annotations(section):
            for inner in _sections_in(annotation):
                many = "[]" if get_origin(annotation) in (list, tuple) else ""
                todo.append((inner, f"{where}.{key}{many}".removeprefix(".")))
    return found


def rows(section: type) -> list[OptionRow]:
    """Every option of a section."""
    if issubclass(section, Section):
        return [_row(name, field) for name, field in section.model_fields.items()]
    meanings = _meanings(section)
    return [_option_row(each, meanings[each.field]) for each in options(section)]


def _annotations(section: type) -> list[tuple[str, Any]]:
    if issubclass(section, Section):
        return [(name, field.annotation) for name, field in section.model_fields.items()]
    return [(each.key, _bare(each.kind)) for each in options(section)]


def _bare(annotation: Any) -> Any:
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation


def _is_section(annotation: Any) -> bool:
    if not isinstance(annotation, type):
        return False
    own = is_dataclass(annotation) and annotation.__module__.startswith("fermata.applications")
    return own or issubclass(annotation, Section)


def _sections_in(annotation: Any) -> list[type]:
    if _is_section(annotation):
        return [annotation]
    return [inner for each in get_args(annotation) for inner in _sections_in(each)]


def _row(name: str, field: FieldInfo) -> OptionRow:
    takes = _type(field.annotation, field.metadata)
    if field.default_factory is not None:
        # Where it depends on the machine, its function says how.
        default = str(field.default_factory.__doc__)
    else:
        default = "required" if field.is_required() else _default(field.default)
    return OptionRow(name, takes, default, " ".join((field.description or "").split()))


def _option_row(option: Option, meaning: str) -> OptionRow:
    takes = option.form.takes if option.form is not None else _type(option.kind)
    uses = [mark.value for mark in USES if mark in option.marks]
    use = f"*{uses[0]}*: " if uses else ""
    if option.default is MISSING:
        default = "required"
    elif option.may_be_absent:
        default = "absent"
    else:
        default = _default(option.write(option.default))
    return OptionRow(option.key, takes, default, use + meaning)


def _meanings(section: type) -> dict[str, str]:
    """The docstring below each field, of the section and what it inherits."""
    found: dict[str, str] = {}
    for each in reversed([one for one in section.__mro__ if is_dataclass(one)]):
        (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(parsed, ast.ClassDef)
        for field, below in zip(parsed.body, parsed.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = ast.literal_eval(below.value)
                found[ast.unparse(field.target)] = " ".join(str(text).split())
    return found


def _default(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, Section):
        return "as below"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    whole = isinstance(value, float) and value.is_integer()
    return f"`{json.dumps(int(value) if whole else value)}`"


def _type(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:
    """In words, with its limits."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _type(annotation.__origin__, (*annotation.__metadata__, *metadata))
    if origin is Literal:
        text = ", ".join(_default(each) for each in inner)
    elif origin in (Union, types.UnionType):
        text = " or ".join(_type(each) for each in inner if each is not type(None))
    elif origin in (list, tuple):
        text = "list of sections" if _is_section(inner[0]) else f"list of {_type(inner[0])}"
        if any(isinstance(limit, MinLen) for limit in metadata):
            text += ", not empty"
    elif origin is not None:
        text = f"map to {_type(inner[1])}"
    elif _is_section(annotation):
        text = "section"
    else:
        text = _plain(annotation, metadata)
    return f"{text} {_limits(metadata)}".strip()


def _plain(annotation: Any, metadata: list[Any] | tuple[Any, ...]) -> str:
    if Mark.MS in metadata:
        return "number"
    names = {int: "integer", float: "number", str: "text", bool: "`true`, `false`"}
    return names.get(annotation, "any")


def _limits(metadata: list[Any] | tuple[Any, ...]) -> str:
    flat = [one for each in metadata for one in getattr(each, "metadata", [each])]
    told: list[str] = []
    for limit in flat:
        if type(limit) in SYMBOLS:
            told.append(f"{SYMBOLS[type(limit)]} {_value(limit):g}")
        elif isinstance(limit, Limits):
            equal = "=" if limit.ends else ""
            told.append(f">{equal} {limit.low:g}")
            told += [f"<{equal} {limit.high:g}"] if limit.high < NUMBER_LIMIT else []
    return ", ".join(told)


def _value(limit: Any) -> float:
    """A limit has one field."""
    (name,) = limit.__dataclass_fields__
    return float(getattr(limit, name))


if __name__ == "__main__":
    print(page(), end="")
