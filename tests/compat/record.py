"""Records what the kept files mean: `python tests/compat/record.py`, from the repository's root.

A recorded meaning is a promise to users. Recording it anew is allowed only for files that are new,
or with a line in CHANGELOG.md that says what means something else now, and what to do about it.
"""

import json
from pathlib import Path
from typing import Any

from readers import READERS, names, read

MEANING = Path(__file__).parent / "meaning"


def recorded(kind: str) -> dict[str, Any]:
    """Each kept file's meaning, by name."""
    found: dict[str, Any] = json.loads((MEANING / f"{kind}.json").read_text(encoding="utf-8"))
    return found


def record(kind: str) -> None:
    """Write the meaning of every file of a kind, with a line for each part of one."""
    lines: list[str] = []
    for name in names(kind):
        parts = [
            f"  {json.dumps(key)}: {json.dumps(part)}" for key, part in read(kind, name).items()
        ]
        lines.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    (MEANING / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    for each in READERS:
        record(each)
        print(f"{each}: {len(names(each))} recorded")
