"""A file of lines that does not fill the disk."""

from pathlib import Path


class RollingFile:
    """Grows to a limit, then starts anew and keeps the one before."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self.bytes_max = bytes_max
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, text: str) -> None:
        """Called by one thread at a time; `text` ends a line."""
        if self.path.exists() and self.path.stat().st_size + len(text) > self.bytes_max:
            self.path.replace(self.path.with_suffix(".old.jsonl"))
        with self.path.open("a", encoding="utf-8") as out:
            out.write(text)
