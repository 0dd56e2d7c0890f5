"""Larger DNNs for workers whose clients need not all fill them.

The mapping of section IV gives every client of a worker the worker's own input size, so the slowest
network decides for all. A client may as well send what its network carries, and a DNN takes smaller
frames too: with few workers that are fast, that is worth more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fermata.router.policies.jellyfish.problem import QUEUE_FACTOR, MappingPlan, Share, Zoo

NETWORK_SHARE = 0.6
"""Of the time that is left for it, which clients may fill with what they send. Sizes that are
finer than DNNs would fill all of it, and the next fall of the network would make a frame late."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of one client for each DNN of the zoo, whichever kind of worker runs it."""

    left_ns: float
    """For network, waiting and running together."""
    budgets_ns: Sequence[float]
    """Time that the network leaves of it if it sends that DNN's input size."""
    floor: float
    """Accuracy below which no frame may be answered."""
    pinned: bool
    """Only its own variant may serve it."""


def raise_dnns(
    zoo: Zoo, plan: MappingPlan, input_sizes: Sequence[int], limits: Mapping[int, ClientLimits]
) -> MappingPlan:
    """The plan, each worker with the DNN that is best where clients send what they can carry."""
    shares = tuple(_raised(zoo, share, input_sizes, limits) for share in plan.shares)
    return MappingPlan(shares, plan.left_out)


def _raised(
    zoo: Zoo, share: Share, input_sizes: Sequence[int], limits: Mapping[int, ClientLimits]
) -> Share:
    if not share.clients or any(limits[each.number].pinned for each in share.clients):
        return share
    best, best_value = share, zoo.accuracy[share.dnn] * share.load
    # The same kind of worker, from the next larger DNN on.
    for place in range(share.dnn + zoo.kinds, len(zoo.accuracy), zoo.kinds):
        if share.load > zoo.capacity[place][-1]:
            continue
        batch = zoo.batch_for(place, share.load)
        taken_ns = QUEUE_FACTOR * zoo.latency_ns[place][batch - 1]
        value = 0.0
        for client in share.clients:
            worth = _worth(zoo, place, taken_ns, input_sizes, limits[client.number])
            if worth is None:
                break
            value += worth * client.load
        else:
            if value > best_value:
                best_value = value
                best = replace(share, dnn=place, batch=batch, network_share=NETWORK_SHARE)
    return best


def _worth(
    zoo: Zoo, place: int, taken_ns: int, input_sizes: Sequence[int], limits: ClientLimits
) -> float | None:
    """Accuracy of the largest frame that comes in time for this DNN; None where none does."""
    dnn = place // zoo.kinds
    least_ns = limits.left_ns - NETWORK_SHARE * (limits.left_ns - taken_ns)
    in_time = (
        zoo.accuracy[other * zoo.kinds]
        for other, size in enumerate(input_sizes)
        if size <= input_sizes[dnn] and limits.budgets_ns[other] >= least_ns
    )
    # What a smaller frame shows is worth no more than the DNN that looks at it.
    best = max((min(each, zoo.accuracy[place]) for each in in_time), default=None)
    return best if best is not None and best >= limits.floor else None
