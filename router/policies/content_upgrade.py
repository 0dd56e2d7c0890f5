"""For policies that choose a variant without looking at content: a better one where it is known."""

from collections.abc import Sequence

from fermata.router.core.events import Request, rows_of
from fermata.router.core.slot import Slot
from fermata.router.policies.family import Family

GAIN = 1e-9
"""Less is rounding."""


def suited(family: Family, slot: Slot, chosen: int, requests: Sequence[Request]) -> int:
    """The variant that is expected to do best on these very requests, of those that take no longer
    here than the policy's own choice. So whatever it promises of time and load still holds; where
    nothing is known of the requests, its choice stands, unless it may miss a class's recall floor
    that another keeps."""
    place = family.variants.index(chosen)
    if place not in family.weak and all(request.accuracies is None for request in requests):
        return chosen
    size = rows_of(requests)
    limit_ns = slot.plan_ns(chosen, size)
    best, most = chosen, _expected(family, place, requests) + GAIN
    for local, variant in enumerate(family.variants):
        if variant == chosen or not _admitted(family, local, place, requests):
            continue
        if not slot.runs(variant) or size > slot.size_max(variant):
            continue
        expected = _expected(family, local, requests)
        if expected > most and slot.plan_ns(variant, size) <= limit_ns:
            best, most = variant, expected + GAIN
    return best


def _admitted(family: Family, local: int, place: int, requests: Sequence[Request]) -> bool:
    """Whether the application's floor and every client leave it, and it takes the same input."""
    if family.accuracy and family.accuracy[local] < family.accuracy_floor:
        return False
    if family.input_sizes and family.input_sizes[local] != family.input_sizes[place]:
        return False
    if any(_barred(family, local, each) for each in requests):
        return False
    variant = family.variants[local]
    return all(each.allowed is None or variant in each.allowed for each in requests)


def _barred(family: Family, local: int, request: Request) -> bool:
    """Whether a recall floor bars it from this request."""
    own = request.accuracies
    return local in family.weak if own is None else own[local] <= 0.0


def _expected(family: Family, local: int, requests: Sequence[Request]) -> float:
    """Right answers; by the profile for those of whom nothing is known."""
    profiled = family.accuracy[local] if family.accuracy and local not in family.weak else 0.0
    return sum(
        [profiled if each.accuracies is None else each.accuracies[local] for each in requests]
    )
