"""The exact re-split of a set of clients over two workers: the move our search is made of.

The greedy mapping of Algorithm 1 loses most of what annealing then looks for. Two workers are few
enough to be solved exactly. For a pair of DNNs with a batch each, some clients can go to the one
only, some to the other only; of the rest the more accurate DNN should get the highest total rate
that leaves the other no more than it can carry: a subset sum, in one integer's bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from router.policies.jellyfish.problem import Client, Zoo


@dataclass(slots=True)
class Offer:
    """A DNN run in batches of a certain size, to these clients."""

    dnn: int
    accuracy: float
    capacity: int
    takes: int
    """Bit i: client i of the set meets its SLO here."""
    taken_load: int
    """Of all those."""


@dataclass(frozen=True, slots=True)
class Split:
    """Who goes to which of two workers, and with which DNNs."""

    value: float
    """Accuracy times load, in units."""
    first_dnn: int
    first: tuple[Client, ...]
    second_dnn: int
    second: tuple[Client, ...]


def best_split(zoo: Zoo, clients: Sequence[Client], above: float) -> Split | None:
    """The best way to serve all these clients on two workers; None unless its value is above."""
    load = sum(client.load for client in clients)
    if zoo.accuracy[-1] * load <= above:
        return None
    offers = make_offers(zoo, clients)
    everyone = (1 << len(clients)) - 1
    sums: dict[int, int] = {}
    best: tuple[Offer, Offer, int] | None = None
    for position, one in enumerate(offers):
        if one.accuracy * load <= above:
            break
        high = min(one.capacity, one.taken_load)
        for other in offers[position:]:
            if one.accuracy * high + other.accuracy * (load - high) <= above:
                break
            if (
                one.takes | other.takes != everyone
                or one.capacity + other.capacity < load
                or load - one.taken_load > other.capacity
                or load - other.taken_load > one.capacity
            ):
                continue
            free = one.takes & other.takes
            reachable = sums.get(free)
            if reachable is None:
                reachable = sums[free] = subset_sums(clients, free)
            forced = load - other.taken_load
            extra = (reachable & ((2 << (one.capacity - forced)) - 1)).bit_length() - 1
            rest = load - forced - extra
            if rest > other.capacity:
                continue
            value = one.accuracy * (forced + extra) + other.accuracy * rest
            if value > above:
                above, best = value, (one, other, extra)
    return None if best is None else _carry_out(clients, above, *best)


def make_offers(zoo: Zoo, clients: Sequence[Client]) -> list[Offer]:
    """Every DNN and batch size worth trying for some of the clients, most accurate first."""
    offers: list[Offer] = []
    for dnn in range(len(zoo.accuracy) - 1, -1, -1):
        takes: dict[int, int] = {}
        loads: dict[int, int] = {}
        for index, client in enumerate(clients):
            batch = client.batch_max[dnn]
            if batch:
                takes[batch] = takes.get(batch, 0) | 1 << index
                loads[batch] = loads.get(batch, 0) + client.load
        all_takes = all_load = 0
        capacity = zoo.capacity[dnn]
        accuracy = zoo.accuracy[dnn]
        last: Offer | None = None
        for batch in sorted(takes, reverse=True):
            if last is not None and capacity[batch] >= all_load:
                # Whatever the larger batch could be given, the smaller carries too.
                offers.pop()
            all_takes |= takes[batch]
            all_load += loads[batch]
            last = Offer(dnn, accuracy, capacity[batch], all_takes, all_load)
            offers.append(last)
    return offers


def subset_sums(clients: Sequence[Client], among: int) -> int:
    """Bit s is set if some of the clients among these add up to s units."""
    reachable = 1
    while among:
        lowest = among & -among
        reachable |= reachable << clients[lowest.bit_length() - 1].load
        among ^= lowest
    return reachable


def _carry_out(
    clients: Sequence[Client], value: float, one: Offer, other: Offer, extra: int
) -> Split:
    """Name the clients that make up the sum."""
    first: list[Client] = []
    second: list[Client] = []
    rows: list[tuple[Client, int]] = []
    reachable = 1
    for index, client in enumerate(clients):
        if not other.takes >> index & 1:
            first.append(client)
        elif not one.takes >> index & 1:
            second.append(client)
        else:
            rows.append((client, reachable))
            reachable |= reachable << client.load
    for client, before in reversed(rows):
        if before >> extra & 1:
            second.append(client)
        else:
            first.append(client)
            extra -= client.load
    return Split(value, one.dnn, tuple(first), other.dnn, tuple(second))
