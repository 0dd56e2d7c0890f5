"""Refusals of queries, as their clients are told them."""

from dataclasses import replace

from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.deployments.specs.pipelines import ServedStage
from fermata.router.core.events import DropReason


def unfit(request: ParsedRequest) -> Refusal | None:
    """A refusal for what queries cannot have."""
    name, terms, pipeline = request.model.name, request.terms, request.model.pipeline
    if request.input.rows > 1:
        message = (
            f"{name!r} takes one input a query, not {request.input.rows} rows: send each alone"
        )
    elif terms.pinned or terms.accuracy_floor > 0.0:
        message = f"{name!r} has several stages: pin variants in requests to their applications"
    elif pipeline is not None and pipeline.cuts_pictures and not request.input.is_picture:
        datatype, shape, _ = request.input.first
        message = (
            f"{name!r} cuts pictures, and {datatype}{list(shape)} is none: send a JPEG as "
            "BYTES[1], or its pixels as UINT8[height, width, 3]"
        )
    else:
        return None
    return Refusal("INVALID_ARGUMENT", RefusalReason.BAD_INPUT, message)


def held(function: str) -> Refusal:
    message = (
        f"failed: function {function} holds all of its threads: it must await what takes long, as "
        "by asyncio.to_thread"
    )
    return Refusal("INTERNAL", RefusalReason.FAILED, message)


def failed(error: Exception) -> Refusal:
    return Refusal("INTERNAL", RefusalReason.FAILED, f"failed: {error or type(error).__name__}")


def told_of(stage: ServedStage, place: int, refusal: Refusal, by_name: bool = False) -> Refusal:
    """A refusal of a part, as the query's client is told it; the first stage is named where that
    says more (`by_name`)."""
    if place == 0 and not by_name:
        if refusal.reason == DropReason.SHED:
            return replace(refusal, message="shed: overload: it could not have ended in time")
        return refusal
    message = f"stage {stage.name!r}: {refusal.message}"
    if refusal.reason == RefusalReason.BAD_INPUT:
        # Its input was made here: the client can do nothing about it.
        return Refusal("INTERNAL", RefusalReason.FAILED, message)
    return replace(refusal, message=message)
