"""Structured logs: one JSON object a line, with what it is about as fields of its own.

Nothing is logged for each request or batch above `debug`, and nothing is formatted that nobody
wants. A thread writes the lines: no request waits for a disk.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fermata.foundation.json_types import Json
from fermata.foundation.rolling_file import RollingFile

LOG = logging.getLogger("fermata")
# Without it Python prints warnings by itself where nobody has asked for logs, as in simulations.
LOG.addHandler(logging.NullHandler())
WAITING_MAX = 100_000
"""Lines that wait for the disk; more are left out, and how many is said."""
WRITE_EVERY_S = 0.2
PATIENCE_S = 0.05
"""How long a line above `debug` is waited for; on a slow disk the next one is not."""
CLOSE_S = 5.0
"""How long the last lines are waited for."""

Write = Callable[[str], None]
Loggable: TypeAlias = "Json | Path | Exception"
"""Values of fields; what is no JSON is written as text."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The level of logs, and where they go."""

    level: str = "warning"
    folder: str = ""
    """Each process has a file of its own there; empty: standard error, which Ray keeps."""
    bytes_max: int = 256 << 20
    """Size of a file; then it starts anew, and the one before is kept."""


def fields(**values: Loggable) -> dict[str, dict[str, Loggable]]:
    """Fields of a line: `LOG.info("loaded", extra=fields(variant=name))`. Ids of requests are
    text: as numbers they are more than some readers of JSON can tell apart."""
    return {"fields": values}


def in_ms(duration_ns: int) -> float:
    """As logs say times."""
    return round(duration_ns / 1e6, 3)


def debugging() -> bool:
    """Whether each request and each batch gets a line."""
    return LOG.isEnabledFor(logging.DEBUG)


def log_line(record: logging.LogRecord, process: str) -> str:
    """A record as one line of JSON."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    told: dict[str, Json] = {
        "time": f"{seconds}.{int(record.created % 1 * 1e6):06d}Z",
        "level": record.levelname.lower(),
        "process": process,
        "event": record.getMessage(),
        **getattr(record, "fields", {}),
    }
    if record.exc_info:
        told["error"] = logging.Formatter().formatException(record.exc_info)
    return json.dumps(told, default=str, separators=(",", ":")) + "\n"


class LineHandler(logging.Handler):
    """Has a thread write all lines, those of `debug` a little later.

    What is rare is waited for, so that it is there even if the process ends next; but not for long:
    a disk that is slow or full holds nobody up.
    """

    def __init__(self, process: str, write: Write) -> None:
        super().__init__()
        self.process = process
        self.write = write
        self.waiting: list[logging.LogRecord] = []
        self.left_out = 0
        self.queueing, self.writing = threading.Lock(), threading.Lock()
        self.due, self.written = threading.Event(), threading.Event()
        self.slow = self.failing = False
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self.thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        with self.queueing:
            if len(self.waiting) < WAITING_MAX:
                self.waiting.append(record)
            else:
                self.left_out += 1
        if record.levelno > logging.DEBUG:
            self.written.clear()
            self.due.set()
            if not self.slow:
                self.slow = not self.written.wait(PATIENCE_S)

    def _run(self) -> None:
        while not self.stopped.is_set():
            self.due.wait(WRITE_EVERY_S)
            self.due.clear()
            self.flush()

    def flush(self) -> None:
        """Write all lines that wait."""
        with self.writing:
            with self.queueing:
                waiting, self.waiting = self.waiting, []
                left_out, self.left_out = self.left_out, 0
            if left_out:
                told = logging.LogRecord("", logging.WARNING, "", 0, "lines left out", None, None)
                told.fields = {"lines": left_out}
                waiting.append(told)
            if waiting:
                self._write("".join([log_line(record, self.process) for record in waiting]))
            self.slow = False
            self.written.set()

    def _write(self, text: str) -> None:
        try:
            self.write(text)
            self.failing = False
        except OSError as error:
            # There is no other place to say it, and once is enough. That may be full as well.
            if not self.failing:
                with suppress(OSError):
                    print(f"logs cannot be written: {error.strerror}", file=sys.stderr)
            self.failing = True

    def close(self) -> None:
        if not self.stopped.is_set():
            self.stopped.set()
            self.due.set()
            self.thread.join(CLOSE_S)
            if not self.thread.is_alive():
                self.flush()
        super().close()


def start_logs(process: str, options: LogOptions) -> None:
    """Log what this process has to say; `process` names it on every line. A second call takes the
    place of the first."""
    for handler in [each for each in LOG.handlers if isinstance(each, LineHandler)]:
        LOG.removeHandler(handler)
        handler.close()
    write = _to_stderr
    if options.folder:
        write = RollingFile(Path(options.folder) / f"{process}.jsonl", options.bytes_max).write
    LOG.addHandler(LineHandler(process, write))
    LOG.setLevel(options.level.upper())
    # Ray has handlers of its own, which would say everything once more.
    LOG.propagate = False


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
