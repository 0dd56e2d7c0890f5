"""What a decision costs: requests per CPU-second of the core, interpreted and compiled."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, run
from fermata.foundation import native
from fermata.router.compiled import build

ROOT = Path(__file__).parent.parent
SMALL, LARGE = (20, 16), (1000, 512)
"""Models and backends."""
REPEATS = 3
"""Machines are noisy; the best of a few runs is the cost without the neighbours'."""


def drive_apart(size: tuple[int, int], requests: int, compiled: bool) -> tuple[float, str]:
    """Best requests per CPU-second and the digest, in a process of its own."""
    code = (
        "import json, sys; from benchmarks.core_drive import drive; "
        "import fermata.router.core.engine as engine; "
        f"runs = [drive({size[0]}, {size[1]}, {requests}) for _ in range({REPEATS})]; "
        "best = max(runs, key=lambda run: run.per_cpu_s); "
        "print(json.dumps([best.per_cpu_s, best.digest, engine.__file__]))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, native.VARIABLE: native.USE[native.VARIABLE] if compiled else ""},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    per_cpu_s, digest, module = json.loads(output)
    assert module.endswith(".so") == compiled, f"measured the wrong core: {module}"
    return per_cpu_s, digest


def measure(quick: bool) -> Iterator[Figure]:
    requests = 60_000 if quick else 300_000
    small, digest = drive_apart(SMALL, requests, False)
    yield Figure("interpreted, 20 models x 16 backends", small, "req/CPU-s", 150_000)
    large, _ = drive_apart(LARGE, 2 * requests, False)
    yield Figure("cost at 1,000 x 512 over 20 x 16", small / large, "x", 3.0, at_most=True)
    build()
    fast, fast_digest = drive_apart(SMALL, requests, True)
    yield Figure("compiled, 20 models x 16 backends", fast, "req/CPU-s", 300_000)
    same = float(fast_digest == digest)
    yield Figure("compiled core decides the same (1: yes)", same, "", 1.0)


if __name__ == "__main__":
    run("Core speed", measure)
