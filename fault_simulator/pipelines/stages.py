"""Stages of the pipelines in the world of simulated faults: what they make, and what is right."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from fermata.clients.pipeline_answers import PipelineAnswer, StagePart
from fermata.clients.wire.tensors import Array, split_bytes
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.served.pipelines import served_pipelines
from fermata.deployments.frontend.requests.queries.parts import StageResult
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.fault_simulator.deployment import MoreModels
from fermata.foundation.json_types import Json, JsonObject
from fermata.foundation.stage_calls import StageCalls, StageLostError
from fermata.foundation.units import ms
from fermata.router.links.messages import Result

SLO_NS = ms(200)
TABLE = tuple(ms(3 + size) for size in range(1, 9))
STAGES = ("find", "name", "read")
STAGE_MODELS = tuple(
    ServedModel(name, TensorSpec("input", "INT64", (1,)), SLO_NS, SLO_NS) for name in STAGES
)
DEAR = tuple(6 * each for each in TABLE)
STAGE_TABLES = {f"{name}-1": TABLE for name in STAGES} | {
    f"{name}-2": DEAR for name in STAGES if name != "read"
}
"""By variant. Two of the stages have two, and too many queries for the dear ones at times."""
STAGE_ENTRIES: tuple[JsonObject, ...] = tuple(
    {
        "name": name,
        "slo_ms": SLO_NS / 1e6,
        "variants": [
            {
                "name": variant,
                "latency_ms": [each / 1e6 for each in table],
                "batch_size_max": len(table),
                "accuracy": 0.8 if table is TABLE else 0.9,
            }
            for variant, table in STAGE_TABLES.items()
            if variant.startswith(name)
        ],
    }
    for name in STAGES
)
SPLIT, SUM = f"{__name__}:split", f"{__name__}:sum_of"
NAME: JsonObject = {"application": "name", "transform": SPLIT}
JOIN: JsonObject = {"join": True, "transform": SUM}
PIPELINE_ENTRIES: tuple[JsonObject, ...] = (
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
    {
        "name": "called",
        "slo_ms": SLO_NS / 1e6,
        "function": f"{__name__}:call",
        "stages": [{"application": name} for name in STAGES],
    },
)
PIPELINES = MoreModels(STAGE_ENTRIES, STAGE_TABLES, STAGE_MODELS, PIPELINE_ENTRIES)
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


async def call(inputs: Mapping[str, Array], stage: StageCalls) -> Json:
    """As a user's function calls stages: one, then some at once, then one after the other. It goes
    on without those that are lost, but for the first."""
    found = int((await stage("find", inputs)).outputs["output"][0])

    async def name(part: int) -> int | None:
        try:
            return int((await stage("name", np.array([part]))).outputs["output"][0])
        except StageLostError:
            return None

    names = await asyncio.gather(*[name(each) for each in parts_of(found)])
    reads: list[int] = []
    for each in names:
        if each is not None and each % 2:
            with suppress(stage.Lost):
                reads.append(int((await stage("read", [each])).outputs["output"][0]))
    return {"find": found, "name": [each for each in names if each is not None], "read": reads}


def query_models(config: DeploymentConfig) -> dict[str, ServedModel]:
    """Pipelines as frontends offer them, by name."""
    return {each.name: each for each in served_pipelines(config, STAGE_MODELS)}


def fault_of(name: str, number: int, result: Result) -> str:
    """What is wrong with the answer of a query; empty: nothing."""
    ((_, _, _, data),) = result.tensors
    answer = PipelineAnswer.read(split_bytes(data)[0])
    if name == "called":
        return _fault_of_calls(number, answer)
    missing = answer.missing()
    if bool(missing) != answer.partial or (missing and name == "chain"):
        return f"an answer of {name} lacks {missing}"
    if "cancelled" in missing:
        return "a part was cancelled, and nobody had asked for that"
    wanted = _wanted(name, number)
    for stage, row in answer.stages.items():
        found = sorted(number_of(each) for each in row if each.missing is None)
        if missing and stage != "sum":
            if not set(found) <= set(wanted[stage]):
                return f"{stage} gave {found}, not some of {wanted[stage]}"
        elif not missing and found != wanted[stage]:
            return f"{stage} gave {found}, not {wanted[stage]}"
    return ""


def _fault_of_calls(number: int, answer: PipelineAnswer) -> str:
    """The same of one whose function called the stages."""
    found, names, missing = answer.answer, parts_of(number), answer.missing()
    if bool(missing) != answer.partial or "cancelled" in missing:
        return f"an answer of called lacks {missing}"
    reads = [each for each in names if each % 2]
    wanted = {"find": number, "name": names, "read": reads}
    if not missing and found != wanted:
        return f"a function found {found}, not {wanted}"
    some = set(found["name"]) <= set(names) and set(found["read"]) <= set(reads)
    return "" if some and found["find"] == number else f"a function found {found} of {wanted}"


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


def number_of(part: StagePart) -> int:
    """The only number of a part's only output."""
    (output,) = part.outputs.values()
    return int(output[0])
