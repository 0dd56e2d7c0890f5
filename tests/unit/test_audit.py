"""The audit of pinned packages, against an index of the test's own."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PINS = [each for each in (ROOT / "constraints.txt").read_text().split() if "==" in each]
HOLE = {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "fixed_in": ["99.0"], "withdrawn": None}


class Index(ThreadingHTTPServer):
    """An index that knows every version, and holes in some of them."""

    holes: dict[str, list[dict[str, Any]]]
    tells = True


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        _, _, name, _, _ = self.path.split("/")
        given = {"vulnerabilities": self.server.holes.get(name, [])} if self.server.tells else {}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(given).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[Index]:
    with Index(("127.0.0.1", 0), Handler) as server:
        server.holes = {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def audit(port: int, *options: str) -> subprocess.CompletedProcess[str]:
    address = {"PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple/", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "k8s/audit.py", *options],
        cwd=ROOT,
        env={**os.environ, **address},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_pinned_package_is_asked_for(index: Index) -> None:
    done = audit(index.server_port)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(PINS)} packages, 0 known vulnerabilities\n"


def test_a_hole_is_named_with_its_remedy_and_may_be_allowed(index: Index) -> None:
    index.holes["numpy"] = [HOLE, {**HOLE, "id": "PYSEC-2026-2", "withdrawn": "2026-11-01"}]
    version = next(each for each in PINS if each.startswith("numpy==")).partition("==")[2]
    done = audit(index.server_port)
    assert done.returncode == 1
    named = f"numpy {version}: PYSEC-2026-1 CVE-2026-1, mended in 99.0"
    assert done.stdout.splitlines()[0] == named
    assert audit(index.server_port, "--allow", "CVE-2026-1").returncode == 0


def test_an_index_that_tells_nothing_is_no_clean_bill(index: Index) -> None:
    index.tells = False
    done = audit(index.server_port)
    assert done.returncode == 2
    assert "nothing was audited" in done.stderr


def test_an_index_out_of_reach_is_no_clean_bill_either() -> None:
    done = audit(1)
    assert done.returncode == 2
    assert "nothing was audited" in done.stderr
