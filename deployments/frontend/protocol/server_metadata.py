"""Metadata, configuration and statistics of the server and its models."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.deployments.frontend.requests.outcome_counts import OutcomeCounts
from fermata.deployments.specs.pipelines import ServedPipeline
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.json_types import Json, JsonObject

NAME = "fermata"
VERSION = "0.1.0"
EXTENSIONS = (
    "classification",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
    "system_shared_memory",
)
PLATFORM = "fermata"


def to_json(message: Any) -> JsonObject:
    """A message as Triton's REST protocol writes it: proto names, and numbers as numbers."""
    found: dict[str, Json] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = {key: to_json(each) for key, each in value.items()}
        elif field.is_repeated:
            found[field.name] = [_json_value(field, each) for each in value]
        else:
            found[field.name] = _json_value(field, value)
    return found


def _json_value(field: Any, value: Any) -> Json:
    if field.message_type is not None:
        return to_json(value)
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    known: Json = value
    return known


def server_metadata() -> pb.ServerMetadataResponse:
    return pb.ServerMetadataResponse(name=NAME, version=VERSION, extensions=EXTENSIONS)


def model_metadata(model: ServedModel) -> pb.ModelMetadataResponse:
    """Shapes have a batch dimension of -1: a request may hold any number of rows."""
    response = pb.ModelMetadataResponse(name=model.name, versions=model.versions, platform=PLATFORM)
    for spec in _inputs(model):
        response.inputs.add(name=spec.name, datatype=spec.datatype, shape=spec.shape)
    for spec in model.outputs:
        response.outputs.add(name=spec.name, datatype=spec.datatype, shape=(-1, *spec.shape))
    return response


def _inputs(model: ServedModel) -> list[TensorSpec]:
    if model.takes_bytes:
        return [TensorSpec(model.input.name, "BYTES", (1,))]
    return [replace(spec, shape=(-1, *spec.shape)) for spec in model.inputs]


def model_config(model: ServedModel) -> pb.ModelConfigResponse:
    config = pb.ModelConfig(name=model.name, platform=PLATFORM, backend=PLATFORM)
    for spec in _inputs(model):
        config.input.add(
            name=spec.name,
            data_type=_data_type(spec.datatype),
            dims=spec.shape,
            optional=spec.optional,
        )
    for spec in model.outputs:
        data_type = _data_type(spec.datatype)
        config.output.add(name=spec.name, data_type=data_type, dims=(1, *spec.shape))
    facts = {
        "slo_ms": f"{model.slo_ns / 1e6:g}",
        "hard_limit_ms": f"{model.hard_limit_ns / 1e6:g}",
        "variants": ",".join(model.variants),
        "takes": _takes(model),
        "answers": _answers(model),
        "labels": str(len(model.labels)),
    } | _box_facts(model)
    if model.image is not None:
        facts["fit"] = model.image.fit
    for name, value in facts.items():
        config.parameters[name].string_value = value
    return pb.ModelConfigResponse(config=config)


def _takes(model: ServedModel) -> str:
    """The kind of input: BYTES alone may be a picture or a sentence."""
    if model.image is not None:
        return "pictures"
    return "text" if model.read is not None else "tensors"


def _answers(model: ServedModel) -> str:
    """The kind of answer: a pipeline's is a document, whatever its stages give."""
    if model.pipeline is not None:
        return "pipeline"
    return "tensors" if model.boxes is None else "boxes"


def _box_facts(model: ServedModel) -> dict[str, str]:
    """Boxes among its outputs, or among those of its stages, for clients that move or draw them."""
    if model.pipeline is not None:
        # What a function answers is its own affair.
        stages = {} if model.pipeline.function else _stage_boxes(model.pipeline)
        return {"stage_boxes": json.dumps(stages)} if stages else {}
    boxes = model.boxes
    if boxes is None:
        return {}
    found = {"boxes": boxes.output, "boxes_axis": boxes.axis, "boxes_format": boxes.format}
    return found | ({"box_labels": json.dumps(model.labels)} if model.labels else {})


def _stage_boxes(pipeline: ServedPipeline) -> JsonObject:
    """Stages that find boxes, each with their form, and whether another stage gets them cut out."""
    found: dict[str, Json] = {}
    for stage, node in zip(pipeline.stages, pipeline.graph.stages, strict=True):
        if (boxes := stage.model.boxes) is not None:
            behind = [pipeline.stages[child].transform.kind for child in node.children]
            found[stage.name] = {
                "output": boxes.output,
                "format": boxes.format,
                "axis": boxes.axis,
                "labels": list(stage.model.labels),
                "cropped": "crop" in behind,
            }
    return found


def _data_type(datatype: str) -> int:
    number: int = getattr(pb, "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}")
    return number


def trouble_of(
    model: ServedModel, version: str, registry: Registry, trouble: Callable[[str], str]
) -> str:
    """Why a version, or a shape bucket of it, is not ready; empty where all of it is."""
    for application in model.applications(version):
        unavailable = registry.unavailable.get(application)
        reason = trouble(application) if unavailable is None else str(unavailable)
        if reason:
            return reason
    return ""


def repository_index(
    registry: Registry,
    trouble: Callable[[str], str],
    ready_only: bool = False,
    may_use: Callable[[str], bool] = lambda name: True,
) -> pb.RepositoryIndexResponse:
    """Every version of every model that the caller may use, with the reason if it is not ready."""
    response = pb.RepositoryIndexResponse()
    for model, version in registry.every():
        if not may_use(model.name):
            continue
        reason = trouble_of(model, version, registry, trouble)
        if reason and ready_only:
            continue
        state = "UNAVAILABLE" if reason else "READY"
        response.models.add(name=model.name, version=version, state=state, reason=reason)
    return response


def statistics(
    models: list[tuple[ServedModel, str]], counts: OutcomeCounts
) -> pb.ModelStatisticsResponse:
    """Counts of this frontend since its start; other frontends have their own."""
    response = pb.ModelStatisticsResponse()
    for model, version in models:
        alone = model.pipeline is None
        found = counts.together(model.applications(version) if alone else (model.name,))
        served, refused = found.served, sum(found.refused.values())
        stats = response.model_stats.add(
            name=model.name,
            version=version,
            last_inference=_epoch_ms(found.last_at_ns),
            inference_count=found.rows,
            execution_count=round(
                sum(each.rows / size for size, each in found.batches.items() if size)
            ),
            inference_stats=pb.InferStatistics(
                success=pb.StatisticDuration(count=served, ns=found.latency_ns),
                fail=pb.StatisticDuration(count=refused),
                queue=pb.StatisticDuration(count=served, ns=max(0, found.queue_ns)),
                compute_infer=pb.StatisticDuration(count=served, ns=found.run_ns),
            ),
        )
        for size, each in sorted(found.batches.items()):
            # The run time of a batch was counted once for each of its rows.
            runs = pb.StatisticDuration(
                count=round(each.rows / max(1, size)), ns=each.rows_run_ns // max(1, size)
            )
            stats.batch_stats.add(batch_size=size, compute_infer=runs)
    return response


def _epoch_ms(at_ns: int) -> int:
    """A time of this process in milliseconds since the epoch; 0 where there is none."""
    if at_ns < 0:
        return 0
    return (time.time_ns() - (time.monotonic_ns() - at_ns)) // 1_000_000
