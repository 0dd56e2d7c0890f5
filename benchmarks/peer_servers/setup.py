"""What a peer's process is told, and the model it serves; runs in the peers' own environment."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fermata.deployments.backend.execution.emulated_gpu import EmulatedGpu, sharpen_sleep
from fermata.foundation.units import ms

VARIABLE = "PEER_SETUP"
"""Environment variable with the path of the set-up: peers start processes of their own."""


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """One model, with the peer's knobs worked out for it."""

    name: str
    alpha_ms: float
    beta_ms: float
    batch_size_max: int
    wait_ms: float
    """How long the peer may hold a batch that is not full."""
    queue_ms: float
    """After so long in its queue a request is refused; 0 where never."""
    gpus: tuple[int, ...]
    """The GPU of each worker."""


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a peer is told."""

    folder: str
    """Where locks and claims are."""
    port: int
    models: tuple[ModelSetup, ...]
    options: dict[str, Any]
    """Knobs that only this peer has."""

    def write(self) -> Path:
        path = Path(self.folder) / "setup.json"
        path.write_text(json.dumps(asdict(self)))
        return path


def read_setup() -> Setup:
    """That of the process's environment."""
    given = json.loads(Path(os.environ[VARIABLE]).read_text())
    models = tuple(ModelSetup(**{**each, "gpus": tuple(each["gpus"])}) for each in given["models"])
    return Setup(given["folder"], given["port"], models, given["options"])


class Emulated:
    """One worker's model: holds the lock of its GPU for as long as a batch would run."""

    def __init__(self, setup: Setup, name: str, gpu: int | None = None) -> None:
        self.model = next(each for each in setup.models if each.name == name)
        if gpu is None:
            gpus = self.model.gpus
            gpu = gpus[claim(Path(setup.folder), name) % len(gpus)]
        self.gpu = EmulatedGpu(f"{setup.folder}/gpu-{gpu}")

    def run(self, size: int) -> None:
        # Each time: the peer decides which thread this is.
        sharpen_sleep()
        self.gpu.run(ms(self.model.beta_ms + size * self.model.alpha_ms))


def claim(folder: Path, name: str) -> int:
    """A number that no other worker of the model has."""
    number = 0
    while True:
        try:
            os.close(os.open(folder / f"worker-{name}-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            number += 1
        else:
            return number
