"""Prints docs/configuration.md from the model that reads a configuration.

`python -m fermata.deployments.config.reference_page > docs/configuration.md`
"""

import json
import types
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from fermata.deployments.config.base import Section
from fermata.deployments.config.deployment import DeploymentConfig

HEAD = """# Configuration

One YAML file describes a deployment: `fermata serve FILE`, `make serve CONFIG=FILE`, or under
`config` in the arguments of a Serve application. Unknown keys are refused, and so is what does not
fit together; the message names the key, the value and the remedy. Times are in milliseconds or
seconds, as the name says. Samples are in `deployments/*.yaml`.

This page is printed by `python -m fermata.deployments.config.reference_page` from the model that
reads the file.
"""
SYMBOLS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}


def page() -> str:
    """The whole file."""
    parts = [HEAD]
    for section, where in sections():
        about = " ".join((section.__doc__ or "").split())
        parts.append(f"\n## {where or 'Top level'}\n\n{about}\n")
        parts.append("| key | takes | unless set | meaning |\n| --- | --- | --- | --- |")
        parts += [_row(name, field) for name, field in section.model_fields.items()]
    return "\n".join(parts) + "\n"


def sections() -> list[tuple[type[Section], str]]:
    """Every section, each once, with where it stands."""
    found: list[tuple[type[Section], str]] = []
    todo: list[tuple[type[Section], str]] = [(DeploymentConfig, "")]
    while todo:
        section, where = todo.pop(0)
        if section in [each for each, _ in found]:
            continue
        found.append((section, where))
        for name, field in section.model_fields.items():
            for inner in _sections_in(field.annotation):
                many = "[]" if get_origin(field.annotation) is list else ""
                todo.append((inner, f"{where}.{name}{many}".removeprefix(".")))
    return found


def _sections_in(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [inner for each in get_args(annotation) for inner in _sections_in(each)]


def _row(name: str, field: FieldInfo) -> str:
    takes = _type(field.annotation, field.metadata)
    default = "required" if field.is_required() else _default(field.default)
    meaning = " ".join((field.description or "").split())
    return f"| `{name}` | {takes} | {default} | {meaning} |"


def _default(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, Section):
        return "as below"
    return (
        f"`{json.dumps(value)}`"
        if not isinstance(value, str)
        else f"`{value}`"
        if value
        else "empty"
    )


def _type(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:
    """In words, with its limits."""
    origin, inner = get_origin(annotation), get_args(annotation)
    flat = [one for each in metadata for one in getattr(each, "metadata", [each])]
    limits = ", ".join(
        f"{SYMBOLS[type(limit)]} {_value(limit):g}" for limit in flat if type(limit) in SYMBOLS
    )
    if origin is not None and hasattr(annotation, "__metadata__"):
        text = _type(inner[0], annotation.__metadata__)
    elif origin is Literal:
        text = ", ".join(f"`{each}`" for each in inner)
    elif origin in (Union, types.UnionType):
        text = " or ".join(_type(each) for each in inner if each is not type(None))
    elif origin is list:
        text = f"list of {_type(inner[0])}"
        if any(isinstance(limit, MinLen) for limit in metadata):
            text += ", not empty"
    elif origin is dict:
        text = f"map to {_type(inner[1])}"
    elif isinstance(annotation, type) and issubclass(annotation, Section):
        text = "section"
    else:
        names = {int: "integer", float: "number", str: "text", bool: "`true`, `false`", Any: "any"}
        text = names.get(annotation, str(annotation))
    return f"{text} {limits}".strip()


def _value(limit: Any) -> float:
    """A limit has one field."""
    (name,) = limit.__dataclass_fields__
    return float(getattr(limit, name))


if __name__ == "__main__":
    print(page(), end="")
