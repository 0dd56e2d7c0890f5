"""The reason why a client is not mapped, for its operator."""

from enum import StrEnum

from fermata.foundation.units import SECOND
from fermata.router.policies.jellyfish.known_clients import KnownClient
from fermata.router.policies.jellyfish.mapping_problem import budgets
from fermata.router.policies.jellyfish.problem import QUEUE_FACTOR
from fermata.router.policies.jellyfish.source import Jellyfish


class UnmappedReason(StrEnum):
    """Reasons, each of which has a remedy of its own."""

    UNPLANNED = "not planned yet"
    NO_BACKEND = "no backend is up"
    FLOOR = "its accuracy floor or pinned variant leaves no variant"
    NETWORK = "its network leaves no time for any variant within its SLO"
    RATE = "its frame rate is above what a backend of its own could carry"
    FULL = "the backends are full with other clients; it takes turns with them"


def why_left_out(source: Jellyfish, known: KnownClient) -> UnmappedReason:
    """The first thing that stands in the way of a client that is not served."""
    if not source.workers:
        return UnmappedReason.NO_BACKEND
    if known.last.client not in source.advised:
        return UnmappedReason.UNPLANNED
    floor = max(source.floor, known.last.accuracy_floor)
    pinned = known.last.pinned
    allowed = [
        dnn
        for dnn, variant in enumerate(source.variants)
        if (pinned < 0 and source.accuracy[dnn] >= floor) or variant == pinned
    ]
    if not allowed:
        return UnmappedReason.FLOOR
    left_ns = budgets(known.wish(), source.input_sizes, source.lead.ns(1))
    kinds = {worker.kind for worker in source.workers.values()}
    in_time = False
    for dnn in allowed:
        for kind in kinds:
            plan_ns = source.costs.of(source.variants[dnn], kind).plan_ns[1:]
            fits = [each for each in plan_ns if QUEUE_FACTOR * each <= left_ns[dnn]]
            in_time = in_time or bool(fits)
            rates = (size * SECOND / each for size, each in enumerate(fits, start=1))
            if any(rate > known.fps for rate in rates):
                return UnmappedReason.FULL
    return UnmappedReason.RATE if in_time else UnmappedReason.NETWORK
