"""On a GPU box: rates that one GPU serves within 25 ms, and answers against offline inference.

Starts and stops servers of its own; clients are on the same box. docs/gpu.md says how to bring it
to a box without a package index.
"""

import argparse
from functools import partial

from benchmarks.figures import run

PARTS = ("one", "three", "plain")


def _parts() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--only",
        action="append",
        choices=PARTS,
        help="one model, three of them, or those three on plain Ray Serve; may be repeated",
    )
    return parser


if __name__ == "__main__":
    # Not above: processes of a load import this module anew, and those imports take seconds.
    from benchmarks.gpu_figures import measure

    parts = _parts()
    wanted = parts.parse_known_args()[0].only or PARTS
    run("One GPU", partial(measure, wanted), parts)
