"""The true class of an earlier request, as its client tells it."""

from fermata.clients.wire.errors import BadRequestError, shown
from fermata.deployments.specs.served_model import ServedModel
from fermata.foundation.json_types import JsonObject
from fermata.router.links.messages import Truth
from fermata.router.policies.sneakpeek.classes import LOOK


def read_truth(model: ServedModel, version: str, given: JsonObject, tenant: int = 0) -> Truth:
    """From `label` and, where they are known, the `answer` and the `variant` that gave it."""
    unknown = sorted(set(given) - {"label", "answer", "variant"})
    if unknown:
        raise BadRequestError(f"{shown(unknown[0])} is unknown: send label, answer and variant")
    if given.get("label") is None:
        raise BadRequestError("label is missing: send the true class, a number or a name")
    variant = given.get("variant") or ""
    if not isinstance(variant, str) or (variant and variant not in (*model.variants, LOOK)):
        known = ", ".join((*model.variants, LOOK))
        raise BadRequestError(f"variant={shown(variant)} is unknown: use one of {known}")
    label = _class("label", given["label"], model.labels)
    answer = given.get("answer")
    told = -1 if answer is None else _class("answer", answer, model.labels)
    return Truth(model.application(version), label, variant, told, tenant)


def _class(name: str, value: object, labels: tuple[str, ...]) -> int:
    """The number of a class that is given by number or by name."""
    if isinstance(value, str) and value in labels:
        return labels.index(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequestError(f"{name}={shown(value)} is no class: use its number or its label")
    if not 0 <= value < (len(labels) or 1 << 31):
        raise BadRequestError(f"{name}={value} is no class: there are {len(labels)}, from 0 up")
    return value
