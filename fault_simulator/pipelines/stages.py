"""Stages of the pipelines in the world of simulated faults: what they make, and what is right."""

import json
from collections.abc import Mapping, Sequence

import numpy as np

from fermata.clients.wire.tensors import Array, split_bytes
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.served.pipelines import served_pipelines
from fermata.deployments.frontend.requests.queries.parts import StageResult
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import ms
from fermata.router.links.messages import Result

SLO_NS = ms(200)
TABLE = tuple(ms(3 + size) for size in range(1, 9))
STAGES = ("find", "name", "read")
STAGE_MODELS = tuple(
    ServedModel(name, TensorSpec("input", "INT64", (1,)), SLO_NS, SLO_NS) for name in STAGES
)
STAGE_VARIANTS = tuple(f"{name}-1" for name in STAGES)
STAGE_ENTRIES: tuple[JsonObject, ...] = tuple(
    {
        "name": name,
        "slo_ms": SLO_NS / 1e6,
        "variants": [
            {
                "name": f"{name}-1",
                "latency_ms": [each / 1e6 for each in TABLE],
                "batch_size_max": len(TABLE),
            }
        ],
    }
    for name in STAGES
)
SPLIT, SUM = f"{__name__}:split", f"{__name__}:sum_of"
NAME: JsonObject = {"application": "name", "transform": SPLIT}
JOIN: JsonObject = {"join": True, "transform": SUM}
PIPELINES: tuple[JsonObject, ...] = (
    {
        "name": "chain",
        "slo_ms": SLO_NS / 1e6,
        "stages": [{"application": "find"}, NAME],
    },
    {
        # A join that is due with the parts of the next stage, and one behind all of them.
        "name": "tree",
        "slo_ms": SLO_NS / 1e6,
        "partial": True,
        "stages": [
            {"application": "find"},
            NAME,
            {"application": "read", "transform": SPLIT},
            {**JOIN, "application": "find", "name": "side", "after": "find", "transform": "input"},
            {**JOIN, "application": "name", "name": "sum", "after": ["name", "read"]},
        ],
    },
)
FACTOR = 64
"""Numbers of parts are those of what they were made of, times this, and their places."""


def parts_of(number: int) -> list[int]:
    """The inputs that are made of a result: none, one or several."""
    return [FACTOR * number + place for place in range(number % 4)]


def split(result: StageResult) -> list[Array]:
    """As a user's function makes inputs."""
    (output,) = result.outputs.values()
    return [np.array([each], np.int64) for each in parts_of(int(output[0]))]


def sum_of(results: Mapping[str, Sequence[StageResult]]) -> Array:
    """The input of the last join: a number that every part before it has a share in."""
    found = [int(next(iter(each.outputs.values()))[0]) for each in results["read"]]
    return np.array([sum(found)], np.int64)


def query_models(config: DeploymentConfig) -> dict[str, ServedModel]:
    """Pipelines as frontends offer them, by name."""
    return {each.name: each for each in served_pipelines(config, STAGE_MODELS)}


def fault_of(name: str, number: int, result: Result) -> str:
    """What is wrong with the answer of a query; empty: nothing."""
    ((_, _, _, data),) = result.tensors
    answer = json.loads(split_bytes(data)[0])
    stages = answer["stages"]
    missing = [each["missing"] for row in stages.values() for each in row if "missing" in each]
    if bool(missing) != answer["partial"] or (missing and name == "chain"):
        return f"an answer of {name} lacks {missing}"
    if "cancelled" in missing:
        return "a part was cancelled, and nobody had asked for that"
    wanted = _wanted(name, number)
    for stage, row in stages.items():
        found = sorted(_number(each) for each in row if "missing" not in each)
        if missing and stage != "sum":
            if not set(found) <= set(wanted[stage]):
                return f"{stage} gave {found}, not some of {wanted[stage]}"
        elif not missing and found != wanted[stage]:
            return f"{stage} gave {found}, not {wanted[stage]}"
    return ""


def _wanted(name: str, number: int) -> dict[str, list[int]]:
    names = parts_of(number)
    if name == "chain":
        return {"find": [number], "name": names}
    reads = sorted(each for one in names for each in parts_of(one))
    return {
        "find": [number],
        "name": names,
        "read": reads,
        "side": [number],
        "sum": [sum(reads)],
    }


def _number(part: dict[str, dict[str, list[int]]]) -> int:
    (output,) = part["outputs"].values()
    return int(output[0])
