"""The exact re-split of a set of clients over two workers: the move our search is made of.

The greedy mapping of Algorithm 1 loses most of what annealing then looks for. Two workers are few
enough to be solved exactly. For a pair of DNNs with a batch each, some clients can go to the one
only, some to the other only; of the rest the more accurate DNN should get the highest total rate
that leaves the other no more than it can carry: a subset sum, in one integer's bits.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fermata.router.policies.jellyfish.problem import FIELD_BITS, Client, Zoo

CLIENTS_AT_ONCE = FIELD_BITS - 1
"""A client is one bit of a field."""
FIELD_BYTES = FIELD_BITS // 8
Offer = tuple[float, int, int, int, int]
"""A DNN run in batches of a certain size, to some clients of a set: its accuracy, its capacity,
those who meet their SLO there (bit i: client i), their load, the DNN."""


@dataclass(frozen=True, slots=True)
class Split:
    """An assignment of clients to two workers, with their DNNs."""

    value: float
    """Accuracy times load, in units."""
    first_dnn: int
    first: tuple[Client, ...]
    second_dnn: int
    second: tuple[Client, ...]


def best_split(
    zoo: Zoo, clients: Sequence[Client], above: float, kinds: tuple[int, int] = (0, 0)
) -> Split | None:
    """The best way to serve all these clients on two workers of these kinds; None unless its value
    is above."""
    load = sum(client.load for client in clients)
    if zoo.accuracy[-1] * load <= above:
        return None
    offers = of_kinds(zoo, make_offers(zoo, clients), kinds)
    unlike = kinds[0] != kinds[1]
    if unlike:
        served = {offer[4] % zoo.kinds for offer in offers}
        # A worker of a kind that serves none of them stands idle.
        offers += [(0.0, 0, 0, 0, kind) for kind in kinds if kind not in served]
    everyone = (1 << len(clients)) - 1
    sums: dict[int, int] = {}
    best: tuple[Offer, Offer, int] | None = None
    for position, one in enumerate(offers):
        accuracy, capacity, takes, taken_load, _ = one
        if accuracy * load <= above:
            break
        high = min(capacity, taken_load)
        # The least load of the other, and the accuracy at which that pays.
        need = load - high
        worth = (above - accuracy * high) / need if need else -1.0
        for other in offers[position:]:
            if other[0] <= worth:
                break
            if unlike and (one[4] - other[4]) % zoo.kinds == 0:
                continue
            if other[1] < need or takes | other[2] != everyone or load - other[3] > capacity:
                continue
            free = takes & other[2]
            reachable = sums.get(free)
            if reachable is None:
                reachable = sums[free] = subset_sums(clients, free)
            forced = load - other[3]
            extra = (reachable & ((2 << (capacity - forced)) - 1)).bit_length() - 1
            rest = load - forced - extra
            if rest > other[1]:
                continue
            value = accuracy * (forced + extra) + other[0] * rest
            if value > above:
                above, best = value, (one, other, extra)
                worth = (above - accuracy * high) / need if need else other[0]
    return None if best is None else _carry_out(clients, above, *best)


def of_kinds(zoo: Zoo, offers: list[Offer], kinds: Collection[int]) -> list[Offer]:
    """The offers of workers of these kinds, in the same order."""
    if zoo.kinds == 1:
        return offers
    return [offer for offer in offers if offer[4] % zoo.kinds in kinds]


def make_offers(zoo: Zoo, clients: Sequence[Client]) -> list[Offer]:
    """Every DNN and batch size worth trying for some of the clients, most accurate first."""
    stride = zoo.stride
    takes, loads = _takers(zoo, clients[:CLIENTS_AT_ONCE])
    for first in range(CLIENTS_AT_ONCE, len(clients), CLIENTS_AT_ONCE):
        more, more_loads = _takers(zoo, clients[first : first + CLIENTS_AT_ONCE])
        takes = [old | new << first for old, new in zip(takes, more, strict=True)]
        loads = [old + new for old, new in zip(loads, more_loads, strict=True)]
    takes.append(0)
    offers: list[Offer] = []
    for dnn in range(len(zoo.accuracy) - 1, -1, -1):
        first = dnn * stride
        if not takes[first + 1]:
            continue
        capacity, accuracy = zoo.capacity[dnn], zoo.accuracy[dnn]
        before = 0
        # Nobody takes a batch of 0, which is next, nor larger ones than the last somebody takes.
        end = takes.index(0, first + 1)
        for place in range(end - 1, first, -1):
            able = takes[place]
            if able == before:
                continue
            carried = capacity[place - first]
            if before and carried >= offers[-1][3]:
                # Any load that the larger batch carries, the smaller carries too.
                offers.pop()
            offers.append((accuracy, carried, able, loads[place], dnn))
            before = able
    return offers


def _takers(zoo: Zoo, clients: Sequence[Client]) -> tuple[list[int], list[int]]:
    """By field: who meets its SLO there (bit i: client i), and the load of these."""
    length = len(zoo.accuracy) * zoo.stride * FIELD_BYTES
    packed_takes = packed_load = 0
    for index, client in enumerate(clients):
        packed_takes |= client.fields << index
        packed_load += client.fields * client.load
    takes = memoryview(packed_takes.to_bytes(length, "little")).cast("I").tolist()
    loads = memoryview(packed_load.to_bytes(length, "little")).cast("I").tolist()
    return takes, loads


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
        if not other[2] >> index & 1:
            first.append(client)
        elif not one[2] >> index & 1:
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
    return Split(value, one[4], tuple(first), other[4], tuple(second))
