"""The profiles, frame sizes and traces that Jellyfish's figures are measured with.

They are not part of this repository; `--data` names their folder.
"""

import csv
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND, ms
from fermata.router.policies.jellyfish.problem import Client, Zoo, make_client, make_zoo, servable

DEFAULT = Path("../shared/data/jellyfish")
FPS = (10, 15, 25)
SLO_MS = (75, 100, 150)
MBPS = (7.5, 50.0)
TRACES = ("synthetic", "wifi", "lte")


@dataclass(frozen=True, slots=True)
class Data:
    """What the folder holds."""

    zoo: Zoo
    input_sizes: tuple[int, ...]
    frame_bits: tuple[float, ...]
    """Of a frame of each input size."""
    traces: dict[str, tuple[float, tuple[float, ...]]]
    """(seconds a step, Mbit/s of each step), by name."""


def load(folder: Path) -> Data:
    """Read the folder; a ConfigError says what is missing."""
    profiles = folder / "dnn_profiles_synthetic.json"
    if not profiles.is_file():
        raise ConfigError(f"--data {folder}: no {profiles.name} there; name the folder that has it")
    dnns = json.loads(profiles.read_text())["dnns"]
    zoo = make_zoo(
        [dnn["accuracy_map"] for dnn in dnns],
        [[ms(value) for value in dnn["latency_ms"]] for dnn in dnns],
    )
    files = {
        "synthetic": "synthetic_trace.csv",
        "wifi": "wifi_trace.csv",
        "lte": "lte_upload_trace.csv",
    }
    return Data(
        zoo,
        tuple(dnn["input_size"] for dnn in dnns),
        tuple(dnn["frame_kbit"] * 1024 for dnn in dnns),
        {name: _trace(folder / file) for name, file in files.items()},
    )


def _trace(path: Path) -> tuple[float, tuple[float, ...]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    step_s = float(rows[1]["t_s"]) - float(rows[0]["t_s"])
    return step_s, tuple(float(row["mbps"]) for row in rows)


def client_at(
    data: Data, number: int, fps: float, slo_ms: float, mbps: float, spent_ms: float = 0.0
) -> Client:
    """A client on a network of this bandwidth: its budget is SLO - s / W (section IV-A)."""
    budgets = [ms(slo_ms - spent_ms) - bits / (mbps * 1e6) * SECOND for bits in data.frame_bits]
    return make_client(data.zoo, number, fps, budgets)


def instance(data: Data, workers: int, clients_each: int, seed: int) -> list[Client]:
    """Clients drawn as in section VI-F; those that no worker could serve are left out."""
    rng = random.Random(f"{workers} {clients_each} {seed}")
    drawn: Sequence[Client] = [
        client_at(data, number, rng.choice(FPS), rng.choice(SLO_MS), rng.uniform(*MBPS))
        for number in range(workers * clients_each)
    ]
    return [client for client in drawn if servable(data.zoo, client)]
