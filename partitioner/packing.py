"""Models packed into as few sub-clusters as first fit finds. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace

from fermata.partitioner.plan import PlacedModel, SubCluster, fits


def in_parts(model: PlacedModel, rate_rps_max: float) -> list[PlacedModel]:
    """The model in equal parts that one router each can carry. No two of them share one, since
    with one part fewer each would be above the limit."""
    count = math.ceil(model.rate_rps / rate_rps_max)
    if count < 2:
        return [model]
    rate_rps = model.rate_rps / count
    return [
        replace(model, name=f"{model.name} ({number} of {count})", rate_rps=rate_rps)
        for number in range(1, count + 1)
    ]


def first_fit(models: Sequence[PlacedModel], place: SubCluster) -> list[list[PlacedModel]]:
    """Each model in the first sub-cluster that has room for it, the largest first. One that fits
    into none is alone."""
    found: list[list[PlacedModel]] = []
    for model in sorted(models, key=lambda each: -_size(each, place)):
        for held in found:
            rate_rps = model.rate_rps + sum(each.rate_rps for each in held)
            if rate_rps <= place.rate_rps_max and fits([*held, model], place.memory_bytes):
                held.append(model)
                break
        else:
            found.append([model])
    return found


def _size(model: PlacedModel, place: SubCluster) -> float:
    rate = model.rate_rps / place.rate_rps_max
    return max(rate, model.static_bytes / max(1, place.memory_bytes))
