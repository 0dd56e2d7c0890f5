"""The bill of materials names every pinned package once."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_pinned_package_is_on_the_bill() -> None:
    done = subprocess.run(
        [sys.executable, "k8s/sbom.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    pins = (ROOT / "constraints.txt").read_text().split()
    named = [f"{each['name']}=={each['version']}" for each in bill["components"]]
    assert named == [each for each in pins if "==" in each]
    assert bill["bomFormat"] == "CycloneDX"
    assert all(each["purl"].startswith("pkg:pypi/") for each in bill["components"])
