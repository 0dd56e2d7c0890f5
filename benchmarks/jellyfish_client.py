"""The client of the live figure: sends a wall of faces, prints one JSON line a frame.

Run by `benchmarks.jellyfish_live` in a network namespace of its own.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator

from benchmarks.face_wall import DISTINCT, Pixels, frame
from fermata.clients.pending import FrameResult
from fermata.clients.stream import FrameStream, StreamOptions


def frames(count: int) -> Iterator[Pixels]:
    """Made beforehand: a camera does not compute its frames."""
    made = [frame(index) for index in range(min(count, DISTINCT))]
    return (made[index % len(made)] for index in range(count))


def _boxes(result: FrameResult) -> list[list[float]]:
    rows = result.outputs.get("output") if result.ok else None
    # An emulated detector finds nothing that has corners.
    return rows[:, :5].tolist() if rows is not None and rows.ndim == 2 else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--fps", type=float, required=True)
    parser.add_argument("--slo-ms", type=float, required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--sides", required=True, help="comma-separated")
    parser.add_argument("--quality", type=int, required=True)
    given = parser.parse_args()
    options = StreamOptions(
        slo_ns=int(given.slo_ms * 1e6),
        fps=given.fps,
        client="1",
        quality=given.quality,
        quality_min=given.quality,
        adapt=True,
        sides=tuple(map(int, given.sides.split(","))),
        boxes="output",
        attempts_max=1,
    )
    began_ns = time.monotonic_ns()
    stream = FrameStream(given.server, "faces", frames(given.frames), options)
    for result in stream:
        adaptation = stream.adaptation
        assert adaptation is not None
        row = {
            "index": result.index,
            "at_s": (result.captured_at_ns - began_ns) / 1e9,
            "ok": result.ok and result.latency_ns <= options.slo_ns,
            "latency_ms": result.latency_ns / 1e6,
            "status": result.status,
            "message": result.message[:80],
            "variant": result.variant,
            "side": result.side,
            "mbps": adaptation.uplink.bandwidth_bps(time.monotonic_ns()) / 1e6,
            "asked": adaptation.uplink.sizer.asked,
            "boxes": _boxes(result),
        }
        print(json.dumps(row), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
