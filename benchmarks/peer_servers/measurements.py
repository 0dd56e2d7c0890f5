"""Findings of runs, kept in a file: a measurement may come in pieces."""

import json
from pathlib import Path
from typing import Any, Protocol

Results = dict[str, dict[str, Any]]
"""Findings by server of a scene."""


class Named(Protocol):
    """A scene of some kind."""

    @property
    def name(self) -> str: ...


class Measurements:
    """All that a run has found, and what earlier ones had."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.scenes: dict[str, Results] = {}
        if path is not None and path.exists():
            self.scenes = json.loads(path.read_text())

    def of(self, scene: Named) -> Results:
        return self.scenes.setdefault(scene.name, {})

    def enter(self, scene: Named, server: str, **values: Any) -> None:
        self.of(scene).setdefault(server, {}).update(values)
        if self.path is not None:
            self.path.write_text(json.dumps(self.scenes, indent=1) + "\n")
