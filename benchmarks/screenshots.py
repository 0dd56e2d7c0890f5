"""Pictures for the README, of a real run: the page of a server that serves real models at load.

`python -m benchmarks.screenshots`; needs Chromium and `make models`.
"""

import argparse
import time
import urllib.request
from pathlib import Path

import yaml
from PIL import Image

from benchmarks.chromium import picture
from benchmarks.ledger_load import finished, start
from benchmarks.live_server import ROOT, Running, fermata

LOADS = {"digits": 40.0, "topics": 6.0, "faces": 4.0, "imagenet": 2.0}
"""Requests a second: about what one core serves beside a browser."""
LOAD_S = 40.0
BUSY_S = 60.0
LOOKS = 6
"""At the frames that the page asks for, a second apart: batches are kept once somebody looks."""
SIZE = (1100, 1150)
COLOURS = 128
"""A page has few: with a palette of them the file is a quarter as large."""


def take(url: str, folder: Path) -> list[Path]:
    taken = []
    for name, dark in (("page", False), ("page-dark", True)):
        path = folder / f"{name}.png"
        picture(url, path, SIZE, dark=dark)
        with Image.open(path) as shot:
            shot.convert("RGB").quantize(COLOURS).save(path, optimize=True)
        taken.append(path)
    return taken


def wait_until_busy(server: Running) -> None:
    """Return once every load is being answered."""
    end_s = time.monotonic() + BUSY_S
    while time.monotonic() < end_s:
        told = server.status()["applications"]
        if all(told[name]["answered"].get("good", 0) for name in LOADS):
            return
        time.sleep(0.5)
    raise SystemExit(f"not every load is answered after {BUSY_S:g} s")


def look(server: Running) -> None:
    url = f"http://127.0.0.1:{server.status_port}/frame"
    for _ in range(LOOKS):
        with urllib.request.urlopen(url, timeout=5) as told:
            told.read()
        time.sleep(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images", help="folder")
    out = parser.parse_args().out.resolve()
    config = yaml.safe_load((ROOT / "deployments/local.yaml").read_text())
    with fermata(**config) as server:
        loads = [start(server.address, model, rate, LOAD_S) for model, rate in LOADS.items()]
        wait_until_busy(server)
        look(server)
        for path in take(f"http://127.0.0.1:{server.status_port}/", out):
            print(f"{path}: {path.stat().st_size / 1024:.0f} KB")
        for each in loads:
            finished(each)


if __name__ == "__main__":
    main()
