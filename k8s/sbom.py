"""Bill of materials (CycloneDX) of all pinned dependencies: `python k8s/sbom.py > sbom.json`."""

import json
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def component(line: str) -> dict[str, object]:
    """One package: its name and version, and its licence where it is installed."""
    name, _, version = line.partition("==")
    found: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
    }
    try:
        given = distribution(name).metadata
    except PackageNotFoundError:
        return found
    licence = given.get("License-Expression")
    if licence:
        found["licenses"] = [{"expression": licence}]
    return found


def bill(text: str) -> dict[str, object]:
    """The bill of a list of pinned packages."""
    lines = [line.partition("#")[0].partition(";")[0].strip() for line in text.splitlines()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "fermata"}},
        "components": [component(line) for line in lines if line],
    }


if __name__ == "__main__":
    json.dump(bill(CONSTRAINTS.read_text()), sys.stdout, indent=1)
