"""As many clients as one or two workers can serve (O1), exactly.

Fix a DNN and batch size for each of two workers. Some clients can go to the one only, some to the
other only, some to both. Of each kind the ones that ask least may as well be served: whoever is
served in the place of one that asks less can be exchanged for it. So only how many of each kind
matters, and for those that can go to both, which of their sums fit: a subset sum in an integer's
bits.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate

from fermata.router.policies.jellyfish.problem import Client, Zoo
from fermata.router.policies.jellyfish.selection.split import (
    Offer,
    make_offers,
    of_kinds,
    subset_sums,
)

NOBODY: Offer = (0.0, 0, 0, 0, 0)
"""A worker that is not there, or serves nobody."""


def most_served(
    zoo: Zoo,
    clients: Sequence[Client],
    workers: int,
    forced: Collection[int],
    leaves_last: Callable[[int], int],
    kinds: Sequence[int] = (0, 0),
) -> list[Client] | None:
    """A largest set of these clients that so many workers, one or two, can serve, among the sets
    that hold those forced; None where none does. Of two that ask for as much, the one with the
    higher key is rather served. `kinds` are those of the workers."""
    ordered = sorted(
        clients,
        key=lambda each: (
            each.number not in forced,
            each.load,
            -leaves_last(each.number),
            each.number,
        ),
    )
    count = sum(client.number in forced for client in ordered)
    every = make_offers(zoo, ordered)
    # A worker whose kind serves none of them stands idle beside the other one.
    offers, others = (
        undominated(of_kinds(zoo, every, (kind,))) or [NOBODY] for kind in (kinds[0], kinds[-1])
    )
    alike = kinds[0] == kinds[-1]
    best: list[Client] | None = None if count else []
    for position, one in enumerate(offers):
        for other in (offers[position:] if alike else others) if workers > 1 else (NOBODY,):
            most = _at_most(ordered, one, other)
            if best is not None and most <= len(best):
                continue
            found = _Pair(ordered, one, other, (1 << count) - 1).most()
            if found is not None and (best is None or len(found) > len(best)):
                best = found
    return best


def undominated(offers: Sequence[Offer]) -> list[Offer]:
    """Those that no other offer makes needless, where only how many are served matters."""
    left: list[Offer] = []
    # The largest capacities first: only what is in front can make an offer needless.
    for offer in sorted(offers, key=lambda each: (-min(each[1], each[3]), -each[2].bit_count())):
        room, takes = min(offer[1], offer[3]), offer[2]
        if not any(takes & ~each[2] == 0 and each[1] >= room for each in left):
            left.append(offer)
    return left


def _at_most(clients: Sequence[Client], one: Offer, other: Offer) -> int:
    """A bound: both workers as one, for all clients that either takes."""
    takes, room = one[2] | other[2], one[1] + other[1]
    loads = sorted(client.load for index, client in enumerate(clients) if takes >> index & 1)
    return bisect_right(list(accumulate(loads)), room)


class _Pair:
    """Two workers with a DNN and batch size each; clients are in the order they are preferred."""

    def __init__(self, clients: Sequence[Client], one: Offer, other: Offer, forced: int) -> None:
        self.clients = clients
        self.rooms = (one[1], other[1])
        self.only_first = _indices(one[2] & ~other[2])
        self.only_second = _indices(other[2] & ~one[2])
        self.either = _indices(one[2] & other[2])
        self.forced = [
            (forced & mask).bit_count()
            for mask in (one[2] & ~other[2], other[2] & ~one[2], one[2] & other[2])
        ]
        self.possible = forced & ~(one[2] | other[2]) == 0

    def most(self) -> list[Client] | None:
        """The largest set that they serve with all who are forced; None where there is none."""
        if not self.possible:
            return None
        first, second = self._prefix(self.only_first), self._prefix(self.only_second)
        must_first, must_second, must_either = self.forced
        best: tuple[int, int, int] | None = None
        total = sum(self.clients[index].load for index in self.either[:must_either])
        sums = subset_sums(self.clients, sum(1 << index for index in self.either[:must_either]))
        for shared in range(must_either, len(self.either) + 1):
            if shared > must_either:
                load = self.clients[self.either[shared - 1]].load
                sums |= sums << load
                total += load
            if total > sum(self.rooms):
                break
            for ours in range(must_first, len(first)):
                room = self.rooms[0] - first[ours]
                if room < 0:
                    break
                # As much as fits here leaves the other worker the most room.
                taken = (sums & ((2 << room) - 1)).bit_length() - 1
                theirs = bisect_right(second, self.rooms[1] - (total - taken)) - 1
                if theirs >= must_second and (best is None or shared + ours + theirs > sum(best)):
                    best = (shared, ours, theirs)
        if best is None:
            return None
        shared, ours, theirs = best
        chosen = self.either[:shared] + self.only_first[:ours] + self.only_second[:theirs]
        return [self.clients[index] for index in chosen]

    def _prefix(self, indices: Sequence[int]) -> list[int]:
        """Loads of the first 0, 1, 2 and so on of these clients."""
        return [0, *accumulate(self.clients[index].load for index in indices)]


def _indices(mask: int) -> list[int]:
    found: list[int] = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found


def most_valuable(
    zoo: Zoo, clients: Sequence[Client], count: int, forced: Collection[int], kind: int = 0
) -> tuple[int, list[Client]]:
    """The DNN and the clients of most value, among those sets of that many that one worker serves
    with all who are forced. There must be one."""
    best = -1.0
    ordered = sorted(clients, key=lambda each: each.number not in forced)
    must = sum(client.number in forced for client in ordered)
    chosen: list[Client] = []
    dnn = 0
    for offer in of_kinds(zoo, make_offers(zoo, ordered), (kind,)):
        accuracy, capacity, takes, load, number = offer
        able = [client for index, client in enumerate(ordered) if takes >> index & 1]
        if len(able) < count or sum(each.number in forced for each in able) < must:
            continue
        if accuracy * min(capacity, load) <= best:
            continue
        rows = _sums_by_count(able, count, must, (2 << capacity) - 1)
        total = rows[-1][count].bit_length() - 1
        if total >= 0 and accuracy * total > best:
            best = accuracy * total
            dnn, chosen = number, _trace_back(able, rows, count, must, total)
    assert best >= 0, "nobody serves so many"
    return dnn, chosen


def _sums_by_count(clients: Sequence[Client], count: int, must: int, room: int) -> list[list[int]]:
    """After each client, by how many are taken: bit s is set if so many add up to s."""
    row = [1] + [0] * count
    rows = [row]
    for index, client in enumerate(clients):
        taken = [0] + [each << client.load & room for each in row[:-1]]
        row = taken if index < must else [a | b for a, b in zip(row, taken, strict=True)]
        rows.append(row)
    return rows


def _trace_back(
    clients: Sequence[Client], rows: Sequence[Sequence[int]], count: int, must: int, total: int
) -> list[Client]:
    chosen: list[Client] = []
    for index in range(len(clients) - 1, -1, -1):
        if index >= must and rows[index][count] >> total & 1:
            continue
        chosen.append(clients[index])
        count -= 1
        total -= clients[index].load
    return chosen
