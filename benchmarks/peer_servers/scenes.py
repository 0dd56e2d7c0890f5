"""What every server is asked to serve: models, SLOs and shares of the load on shared GPUs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fermata.clients.load.arrivals import SendTimes, poisson
from fermata.profiles.store import find
from fermata.simulator.scenario.scenario import Scenario, read_scenario

INPUT_BYTES = 20_000
TABLE = "symphony-1080ti"
SLOWER = 3
"""Times and SLOs of the table are taken this many times, since CPUs here are few."""
EIGHT_MODELS = (
    "ResNet50",
    "MobileNetV3Small",
    "InceptionV3",
    "EfficientNetB0",
    "DenseNet121",
    "VGG16",
    "NASNetMobile",
    "BERT",
)
"""The most popular first: from strong gains by batching to none."""


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    alpha_ms: float
    beta_ms: float
    slo_ms: float

    def run_ms(self, size: int) -> float:
        return self.beta_ms + size * self.alpha_ms

    def batch_size_max(self, share: float) -> int:
        """The largest batch that runs in that share of the SLO; 1 where none does."""
        return max(1, int((share * self.slo_ms - self.beta_ms) / self.alpha_ms + 1e-9))


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    models: tuple[Model, ...]
    gpus: int
    zipf: float = 0.0
    """Shares of the load fall with rank to this power."""

    def shares(self) -> tuple[float, ...]:
        weights = [rank**-self.zipf for rank in range(1, len(self.models) + 1)]
        return tuple(weight / sum(weights) for weight in weights)

    def arrivals(self, rate_rps: float, duration_ns: int, seed: int) -> SendTimes:
        """Poisson, each request to a model drawn by its share."""
        rng = np.random.default_rng(seed)
        at_ns = poisson(rate_rps, duration_ns, rng)
        target = rng.choice(len(self.models), len(at_ns), p=self.shares())
        return SendTimes(at_ns, target.astype(np.int64), np.zeros(len(at_ns), np.int64))

    def scenario(self, rate_rps: float) -> Scenario:
        """The same for the simulator."""
        applications = [
            {
                "name": each.name,
                "slo_ms": each.slo_ms,
                "variants": [
                    {"name": each.name, "alpha_ms": each.alpha_ms, "beta_ms": each.beta_ms}
                ],
            }
            for each in self.models
        ]
        return read_scenario(
            {
                "seed": 1,
                "duration_s": 30,
                "warmup_s": 2,
                "backends": self.gpus,
                "policy": "deferred",
                "policy_options": {"hold": "auto"},
                "rate_rps": rate_rps,
                "popularity": {"zipf": self.zipf} if self.zipf else "equal",
                "applications": applications,
            }
        )

    def applications(self) -> list[dict[str, Any]]:
        """The same as sections of Fermata's own configuration."""
        return [
            {
                "name": each.name,
                "slo_ms": each.slo_ms,
                "input": {"name": "input", "dtype": "UINT8", "shape": [INPUT_BYTES]},
                "variants": [
                    {
                        "name": f"{each.name}-1",
                        "model": "emulated",
                        "alpha_ms": each.alpha_ms,
                        "beta_ms": each.beta_ms,
                    }
                ],
            }
            for each in self.models
        ]


def _of_table(name: str) -> Model:
    profile = find(f"{TABLE}/{name}")
    assert profile.linear_ns is not None, f"{name} is no line"
    assert profile.slo_ns is not None, f"{name} has no SLO"
    alpha_ns, beta_ns = profile.linear_ns
    times_ns = (alpha_ns, beta_ns, profile.slo_ns)
    return Model(name, *(SLOWER * each / 1e6 for each in times_ns))


def one_gpu() -> Scene:
    """l(b) = 5 + b ms, SLO 50 ms."""
    return Scene("one", (Model("emulated", 1.0, 5.0, 50.0),), gpus=1)


def eight_models() -> Scene:
    """Eight models of Symphony's Table 5 on two GPUs, Zipf 0.9."""
    return Scene("eight", tuple(_of_table(name) for name in EIGHT_MODELS), gpus=2, zipf=0.9)
