"""The deployment that this world serves, as a configuration."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fermata.deployments.backend.execution.runners.runner import Runner
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import ms

POLICIES: tuple[tuple[str, dict[str, str]], ...] = (
    ("deferred", {"hold": "deferred"}),
    ("deferred", {"hold": "auto"}),
    ("eager", {}),
    ("timeout", {}),
    ("batch-queues", {}),
    ("partitioned", {}),
)
Tables = dict[str, tuple[int, ...]]
TABLES: dict[bool, Tables] = {
    False: {
        "quick-1": tuple(ms(3 + size) for size in range(1, 9)),
        "text-1": tuple(ms(6 + 2 * size) for size in range(1, 9)),
    },
    # So slow that a load which is quickly simulated needs several backends, and that on a slow one
    # not even a batch of one may be in time: somebody has to find out that it is well again. Two of
    # each at once, one by one on the only backend, are in time.
    True: {
        "quick-1": tuple(ms(6 + 6 * size) for size in range(1, 9)),
        "text-1": tuple(ms(12 + 8 * size) for size in range(1, 9)),
    },
}
"""Run times by batch size, where the number of backends is fixed and where it follows the load."""
FIXED = ("timeout", "partitioned")
"""Policies that cannot move between sub-clusters."""
EPOCHS = {"sub_clusters": 2, "every_s": 1, "solve_s": 1, "move_s": 2, "imbalance": 0.0}
WINDOW_S = 0.5
BACKENDS_MAX = 4
PLAIN = ServedModel("quick", TensorSpec("input", "INT64", (1,)), ms(80), ms(80))
ENCODED = ServedModel(
    "text",
    TensorSpec("input", "INT64", (1,)),
    ms(150),
    ms(220),
    read=lambda data: np.array([int(data)], np.int64),
)


@dataclass(frozen=True, slots=True)
class MoreModels:
    """Models beside those that every deployment of this world has."""

    entries: tuple[JsonObject, ...] = ()
    """Sections of applications, as in a file."""
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Run times by variant."""
    models: tuple[ServedModel, ...] = ()
    pipelines: tuple[JsonObject, ...] = ()
    """Sections of pipelines, whose stages are among these models."""
    runners: Callable[[], Mapping[str, Runner]] = dict
    """By variant: runners for a backend's process, where a model does not echo."""
    reports: bool = False
    """Clients report their networks."""


NO_MORE = MoreModels()


def drawn(rng: random.Random, given: bool | None) -> bool:
    """As given; else by lot."""
    return rng.random() < 0.5 if given is None else given


def draw_policy(rng: random.Random, placed: bool) -> tuple[str, dict[str, str]]:
    """A policy with its options; one that can move where models are placed."""
    policy, options = rng.choice(POLICIES)
    return POLICIES[0] if placed and policy in FIXED else (policy, options)


def deployment(
    rng: random.Random,
    backends: int,
    standby: bool,
    scaled: bool,
    placed: bool = False,
    more: MoreModels = NO_MORE,
) -> DeploymentConfig:
    policy, options = draw_policy(rng, placed)
    scaling = {
        "minimum": rng.randint(1, 2),
        "maximum": BACKENDS_MAX,
        "window_s": WINDOW_S,
        "startup_s": WINDOW_S,
    }
    applications: list[JsonObject] = [
        {
            "name": model.name,
            "slo_ms": model.slo_ns / 1e6,
            "hard_limit_ms": model.hard_limit_ns / 1e6,
            "variants": [
                {
                    "name": f"{model.name}-1",
                    "latency_ms": [each / 1e6 for each in TABLES[scaled][f"{model.name}-1"]],
                    "batch_size_max": 8,
                }
            ],
        }
        for model in (PLAIN, ENCODED)
    ]
    document: JsonObject = {
        "name": "world",
        "applications": [*applications, *more.entries],
        "pipelines": list(more.pipelines),
        "backend": {"count": backends, "device": "emulated"},
        "router": {"policy": policy, "policy_options": options, "standby": standby},
        "autoscaler": scaling if scaled else None,
        "epochs": EPOCHS if placed else None,
    }
    return read_config(document)
