"""`fermata view`: a recorded run on the page that the live system has."""

import json
import threading
import webbrowser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import typer

from fermata.deployments.control.page.page import page
from fermata.foundation.errors import ConfigError

RecordPath = Annotated[
    Path, typer.Argument(metavar="RECORD", help="File of `fermata simulate --record`.")
]
Port = Annotated[int, typer.Option(help="Port on this machine; 0 takes a free one.")]
OpenIt = Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")]


class Record:
    """The frames of a file, by number."""

    def __init__(self, path: Path) -> None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            self.frames = [json.loads(line) for line in lines if line.strip()]
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise ConfigError(f"{path}: is not a record of frames ({error})") from None
        if not self.frames or not all("at_s" in each for each in self.frames):
            raise ConfigError(f"{path}: holds no frames; make it with fermata simulate --record")

    def frame(self, index: int) -> str:
        place = min(max(0, index), len(self.frames) - 1)
        return json.dumps({**self.frames[place], "notes": {"count": len(self.frames)}})


def make_server(record: Record, port: int) -> ThreadingHTTPServer:
    """Serves the page and one frame after the other, on this machine alone."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if asked.path == "/":
                self._say(200, "text/html; charset=utf-8", page())
            elif asked.path == "/frame":
                index = parse_qs(asked.query).get("index", ["0"])[0]
                number = int(index) if index.isdecimal() else 0
                self._say(200, "application/json", record.frame(number))
            else:
                self._say(404, "text/plain; charset=utf-8", "a record has only its page\n")

        def _say(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody wants a line for each frame."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def view(record: RecordPath, port: Port = 8000, open_it: OpenIt = True) -> None:
    """Replay a recorded run on the live system's page, until Ctrl-C."""
    loaded = Record(record)
    try:
        server = make_server(loaded, port)
    except OSError as error:
        raise ConfigError(f"port {port} is not available ({error.strerror}); give --port") from None
    url = f"http://127.0.0.1:{server.server_port}/"
    typer.echo(f"{len(loaded.frames)} frames at {url}; Ctrl-C ends it")
    if open_it:
        threading.Timer(0.2, webbrowser.open, (url,)).start()
    with server:
        server.serve_forever()
