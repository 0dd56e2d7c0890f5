"""The scheduling problem P1 of Jellyfish (section IV-A): a zoo, clients, workers, a plan."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil

from fermata.foundation.units import SECOND

UNITS_PER_FPS = 4
"""Rates need not share a divisor, so they are rounded up, and capacities down, to 1/4 frame/s."""
FIELD_BITS = 32
"""Enough for the load of any worker, and for a bit of each client of most pairs of workers."""
QUEUE_FACTOR = 2
"""Eq. (5): a request waits at most for one batch and runs in the next."""


@dataclass(frozen=True, slots=True)
class Zoo:
    """The DNNs of one task, the least accurate first.

    Where workers are of several kinds, it has each DNN once for each kind, one after the other.
    """

    accuracy: tuple[float, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    """By DNN; l(1), l(2), l(3) and so on."""
    capacity: tuple[tuple[int, ...], ...]
    """By DNN and batch size: the largest load, in units, that batches of at most that size carry;
    index 0 is 0."""
    fields: tuple[tuple[int, ...], ...]
    """By DNN and batch size: an integer with a 1 in the field of each batch up to that size. A
    client's fields over all DNNs are one integer (`Client.fields`), so that a few additions give
    the load of any set of clients for every DNN and batch at once."""

    stride: int
    """Fields that each DNN has, one for each batch size and one for 0."""
    kinds: int = 1
    """Kinds of workers: place `dnn * kinds + kind` is that DNN on that kind."""

    def batch_max(self, dnn: int, budget_ns: float) -> int:
        """Eq. (5): the largest batch whose wait and run fit the latency budget; 0 if none does."""
        return bisect_right(self.latency_ns[dnn], budget_ns / QUEUE_FACTOR)

    def batch_for(self, dnn: int, load: int) -> int:
        """The smallest batch that carries the load: the one with the least latency."""
        for batch, capacity in enumerate(self.capacity[dnn]):
            if load <= capacity:
                return batch
        raise AssertionError(f"no batch of DNN {dnn} carries {load} units")


def make_zoo(accuracy: Sequence[float], latency_ns: Sequence[Sequence[int]], kinds: int = 1) -> Zoo:
    """A zoo of DNNs whose accuracy rises; a more accurate one may be faster, with larger inputs.
    Measured tails may not rise with the batch: that of a smaller one then holds for the larger."""
    assert all(low <= high for low, high in pairwise(accuracy))
    tables = [tuple(accumulate(own_ns, max)) for own_ns in latency_ns]
    capacity = tuple(_capacities(table) for table in tables)
    stride = max(map(len, capacity), default=0)
    fields = _fields(capacity, stride)
    return Zoo(tuple(accuracy), tuple(tables), capacity, fields, stride, kinds)


def _fields(capacity: Sequence[Sequence[int]], stride: int) -> tuple[tuple[int, ...], ...]:
    rows: list[tuple[int, ...]] = []
    for dnn, of_dnn in enumerate(capacity):
        row = [0]
        for batch in range(1, len(of_dnn)):
            row.append(row[-1] | 1 << FIELD_BITS * (dnn * stride + batch))
        rows.append(tuple(row))
    return tuple(rows)


def _capacities(table_ns: Sequence[int]) -> tuple[int, ...]:
    capacity = [0]
    for batch, run_ns in enumerate(table_ns, start=1):
        # Strictly under the throughput: at it, the first late frame would delay all later ones.
        units = (batch * SECOND * UNITS_PER_FPS - 1) // run_ns
        capacity.append(max(capacity[-1], units))
    return tuple(capacity)


@dataclass(frozen=True, slots=True)
class Client:
    """One client as the mapping sees it."""

    number: int
    load: int
    """Frames in units, rounded up."""
    batch_max: tuple[int, ...]
    """By DNN: the largest batch that meets its SLO; 0 where none does or its floor or pin forbids
    the DNN."""
    fields: int
    """See `Zoo.fields`."""


def load_of(fps: float) -> int:
    """A frame rate in units."""
    return ceil(fps * UNITS_PER_FPS - 1e-9)


def make_client(
    zoo: Zoo,
    number: int,
    fps: float,
    budget_ns: Sequence[float],
    floor: float = 0.0,
    pinned: int | None = None,
) -> Client:
    """A client with its latency budget for each DNN (SLO less network time of that input)."""
    batch_max: list[int] = []
    for place, accuracy in enumerate(zoo.accuracy):
        dnn = place // zoo.kinds
        allowed = accuracy >= floor and pinned in (None, dnn)
        batch_max.append(zoo.batch_max(place, budget_ns[dnn]) if allowed else 0)
    packed = sum(zoo.fields[dnn][batch] for dnn, batch in enumerate(batch_max))
    return Client(number, load_of(fps), tuple(batch_max), packed)


def servable(zoo: Zoo, client: Client) -> bool:
    """Whether a worker of its own could serve it; the others must not hold anybody up."""
    return any(
        batch > 0 and client.load <= zoo.capacity[dnn][batch]
        for dnn, batch in enumerate(client.batch_max)
    )


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of a plan."""

    dnn: int
    batch: int
    """0 where it serves nobody."""
    clients: tuple[Client, ...]
    network_share: float = 1.0
    """Of the time that is left for their networks, which clients may fill."""

    @property
    def load(self) -> int:
        return sum(client.load for client in self.clients)


@dataclass(frozen=True, slots=True)
class MappingPlan:
    """A DNN, a batch size and clients for each worker."""

    shares: tuple[Share, ...]
    left_out: tuple[Client, ...] = ()

    @property
    def served(self) -> int:
        """O1: how many clients are mapped."""
        return sum(len(share.clients) for share in self.shares)

    def value(self, zoo: Zoo) -> float:
        """O2, Eq. (1): accuracy times rate, over all mapped clients."""
        total = sum(zoo.accuracy[share.dnn] * share.load for share in self.shares)
        return total / UNITS_PER_FPS

    def score(self, zoo: Zoo) -> tuple[int, float]:
        """The objective: O1 first."""
        return self.served, self.value(zoo)


def make_share(zoo: Zoo, dnn: int, clients: Iterable[Client]) -> Share:
    """A worker's share with the batch that meets its load with the least latency."""
    clients = tuple(clients)
    load = sum(client.load for client in clients)
    return Share(dnn, zoo.batch_for(dnn, load) if clients else 0, clients)


def check_plan(zoo: Zoo, plan: MappingPlan) -> None:
    """Assert Eqs. (2), (5) and (6): nobody twice, everybody in time, no worker overloaded."""
    seen: set[int] = set()
    for share in plan.shares:
        assert share.load <= zoo.capacity[share.dnn][share.batch]
        for client in share.clients:
            assert client.number not in seen
            assert share.batch <= client.batch_max[share.dnn]
            seen.add(client.number)
    assert seen.isdisjoint(client.number for client in plan.left_out)
