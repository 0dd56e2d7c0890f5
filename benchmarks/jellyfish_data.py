"""The profiles, frame sizes and traces that Jellyfish's figures are measured with.

They are not part of this repository; `--data` names their folder.
"""

import csv
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND, ms
from fermata.profiles.profile import Profile
from fermata.profiles.store import load_file
from fermata.router.policies.jellyfish.problem import Client, Zoo, make_client, make_zoo, servable

DEFAULT = Path("../shared/data/jellyfish")
FPS = (10, 15, 25)
SLO_MS = (75, 100, 150)
MBPS = (7.5, 50.0)
TRACES = ("synthetic", "wifi", "lte")
BATCH_SIZE_MAX = 12
"""Batch size up to which a DNN is planned, measured or made up."""


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


def measured(data: Data, profiles: str) -> Data:
    """The same with DNNs that were measured: FILE#MODEL, of `fermata profile --input-sizes`. A file
    without accuracies has those of the DNNs made up, by size."""
    file, _, model = profiles.partition("#")
    found: list[tuple[int, Profile]] = []
    for profile in load_file(Path(file)).profiles:
        name, _, told = profile.name.rpartition("@")
        if name == model and told.isdecimal() and int(told) in data.input_sizes:
            found.append((int(told), profile))
    if not found:
        raise ConfigError(
            f"--profiles {profiles}: no {model}@SIDE there of a side that frames have"
        )
    dnns: list[tuple[int, Profile, float]] = []
    for side, profile in sorted(found, key=lambda each: each[0]):
        made_up = data.zoo.accuracy[data.input_sizes.index(side)]
        accuracy = made_up if profile.accuracy is None else profile.accuracy
        # A larger one that is no better would never be run.
        if not dnns or accuracy > dnns[-1][2]:
            dnns.append((side, profile, accuracy))
    zoo = make_zoo(
        [accuracy for _, _, accuracy in dnns],
        [profile.table_ns_p99(_batch_size_max(profile)) for _, profile, _ in dnns],
    )
    sides = tuple(side for side, _, _ in dnns)
    bits = tuple(data.frame_bits[data.input_sizes.index(side)] for side in sides)
    return replace(data, zoo=zoo, input_sizes=sides, frame_bits=bits)


def _batch_size_max(profile: Profile) -> int:
    return min(BATCH_SIZE_MAX, profile.batch_size_max or BATCH_SIZE_MAX)


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
