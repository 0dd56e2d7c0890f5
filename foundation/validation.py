"""Typed reading of one object of a file; every refusal names the field and the value."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import check_fraction, check_number, check_positive, refuse

MERGE = "tag:yaml.org,2002:merge"


def read_json(path: Path) -> object:
    """The file's content, or a ConfigError in one line."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a JSON file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not JSON ({error}); see profiles/README.md") from None


class DoubleKeyError(ValueError):
    """A mapping has a key twice."""


class UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that is there twice: the first would be lost without a word."""

    def compose_mapping_node(self, anchor: dict[Any, Any]) -> yaml.MappingNode:
        # Not when it is constructed: what is merged into it is among its own keys by then.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        seen: set[tuple[str, str]] = set()
        for key in keys:
            # As many mappings may be merged into one as there are.
            if key.tag != MERGE and (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise DoubleKeyError(f"line {line}: key {key.value!r} is there twice; keep one")
            seen.add((key.tag, key.value))
        return node


def read_yaml(path: Path | str) -> object:
    """The content of a YAML or JSON file, or a ConfigError in one line."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), UniqueKeyLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a YAML file") from None
    except DoubleKeyError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is neither YAML nor JSON ({reason})") from None


@dataclass(frozen=True, slots=True)
class Fields:
    """An object with known keys; `where` is the start of its fields' full names."""

    where: str
    data: dict[str, object]
    beside: Path | None = None
    """Folder of the file, which paths in it are relative to; None: the current one."""

    @property
    def label(self) -> str:
        """The object's own name."""
        return self.where.rstrip(".")

    def name(self, key: str) -> str:
        return f"{self.where}{key}"

    def has(self, key: str) -> bool:
        return key in self.data

    def text(self, key: str, default: str | None = None) -> str:
        """A string; required and not empty unless there is a default."""
        value = self.data.get(key, default)
        if not isinstance(value, str) or not (value or default is not None):
            refuse(self.name(key), value, "must be a string that is not empty")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number of at least 0; required unless there is a default."""
        value = number(self.name(key), self.data.get(key, default))
        check_number(self.name(key), value)
        return value

    def positive(self, key: str) -> float | None:
        """A finite number above 0, or None where the key is absent."""
        if not self.has(key):
            return None
        value = number(self.name(key), self.data[key])
        check_positive(self.name(key), value)
        return value

    def integer(self, key: str, default: int | None = None, low: int = 0) -> int:
        """A whole number of at least `low`; required unless there is a default."""
        value = self.data.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            refuse(self.name(key), value, f"must be a whole number of at least {low}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            refuse(self.name(key), value, "must be true or false")
        return value

    def choice(self, key: str, allowed: Collection[str], default: str | None = None) -> str:
        """One of the allowed words; required unless there is a default."""
        value = self.data.get(key, default)
        if not isinstance(value, str) or value not in allowed:
            refuse(self.name(key), value, f"must be one of {', '.join(allowed)}")
        return value

    def inner(self, key: str, allowed: Collection[str]) -> "Fields":
        """The object under a key; empty where the key is absent."""
        name = self.name(key)
        return fields(f"{name}.", name, self.data.get(key, {}), allowed, self.beside)

    def mapping(self, key: str) -> dict[str, object]:
        """The object under a key, its own keys unchecked; empty where the key is absent."""
        value = self.data.get(key, {})
        if not isinstance(value, dict):
            refuse(self.name(key), value, "must be an object with named fields")
        return value

    def rows(self, key: str, allowed: Collection[str]) -> list["Fields"]:
        """The list of objects under a key; empty where the key is absent."""
        names = [f"{self.name(key)}[{index}]" for index in range(len(self.items(key)))]
        return [
            fields(f"{name}.", name, row, allowed, self.beside)
            for name, row in zip(names, self.items(key), strict=True)
        ]

    def fraction(self, key: str) -> float | None:
        """A number from 0 to 1, or None where the key is absent."""
        if not self.has(key):
            return None
        value = number(self.name(key), self.data[key])
        check_fraction(self.name(key), value)
        return value

    def items(self, key: str) -> list[object]:
        """A list; empty where the key is absent."""
        value = self.data.get(key, [])
        if not isinstance(value, list):
            refuse(self.name(key), value, "must be a list")
        return value

    def numbers(self, key: str) -> list[float]:
        """A list of numbers; empty where the key is absent."""
        return [
            number(f"{self.name(key)}[{index}]", value)
            for index, value in enumerate(self.items(key))
        ]

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers; empty where the key is absent."""
        whole: list[int] = []
        for index, value in enumerate(self.items(key)):
            if not isinstance(value, int) or isinstance(value, bool):
                refuse(f"{self.name(key)}[{index}]", value, "must be a whole number")
            whole.append(value)
        return whole


def fields(
    where: str, label: str, value: object, allowed: Collection[str], beside: Path | None = None
) -> Fields:
    """The object's fields, or a refusal of what is no object or has keys beyond `allowed`."""
    if not isinstance(value, dict):
        refuse(label, value, "must be an object with named fields")
    for key in value:
        if key not in allowed:
            refuse(f"{where}{key}", value[key], f"unknown key; allowed: {', '.join(allowed)}")
    return Fields(where, value, beside)


def number(field: str, value: object) -> float:
    """The value where it is a JSON number: `true` and `null` are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(field, value, "must be a number")
    return value
