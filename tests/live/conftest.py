"""One server for every test that needs the whole system: Ray takes its time to start."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from documents import blocks
from served import ROOT, Server, serving

LATER: list[dict[str, Any]] = [
    {
        "name": "pair",
        "slo_ms": 200,
        "variants": [{"name": "pair-one", "model": "digits:small", "batch_size_max": 4}],
    },
    {
        "name": "pair",
        "version": 2,
        "load": "asked",
        "slo_ms": 200,
        "variants": [{"name": "pair-two", "model": "digits:large", "batch_size_max": 4}],
    },
    {
        "name": "broken",
        "load": "asked",
        "slo_ms": 200,
        "input": {"shape": [4]},
        "variants": [{"name": "broken-1", "model": "notes.pt", "alpha_ms": 1, "beta_ms": 1}],
    },
]
"""What is loaded when a client asks for it, if at all."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """What `make serve` serves, the emulated sample, the README's own model, and `LATER`."""
    pytest.importorskip("ray")
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("serve")
    shown = {block.file: block.text for block in blocks(ROOT / "README.md")}
    (folder / "my_models.py").write_text(shown["my_models.py"])
    config = yaml.safe_load((ROOT / "deployments/local.yaml").read_text())
    emulated = yaml.safe_load((ROOT / "deployments/emulated.yaml").read_text())
    config["applications"] += emulated["applications"]
    config["applications"] += yaml.safe_load(shown["doubler.yaml"])["applications"]
    config["frontend"] = {"processes": 2}
    config["repository"] = "open"
    config["traces"] = {"folder": str(folder / "traces"), "share": 0}
    config["logs"] = {"folder": str(folder / "logs")}
    config["applications"] += LATER
    (folder / "notes.pt").write_bytes(b"These are notes, not weights.\n" * 20)
    LATER[-1]["variants"][0]["model"] = str(folder / "notes.pt")
    with serving(folder, config, backends=1) as one:
        yield one
