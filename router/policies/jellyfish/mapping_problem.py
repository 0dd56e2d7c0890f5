"""The input of a decision and its result: plain data, so that it may be made in another
process, and little of it, since the router packs and unpacks both between two requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fermata.clients.network.frame_bits import FrameBits
from fermata.foundation.units import SECOND
from fermata.router.policies.jellyfish.decision import Decider, never
from fermata.router.policies.jellyfish.known_clients import ClientNeeds
from fermata.router.policies.jellyfish.problem import (
    Client,
    MappingPlan,
    Zoo,
    make_client,
    make_zoo,
)
from fermata.router.policies.jellyfish.raised import ClientLimits, raise_dnns


@dataclass(frozen=True, slots=True)
class MappingProblem:
    """One application's zoo, clients and workers as they are at an instant."""

    accuracy: tuple[float, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    """By DNN: planned run times of batches of 1, 2, 3 and so on."""
    input_sizes: tuple[int, ...]
    variants: tuple[int, ...]
    """The numbers that clients pin themselves to, by DNN."""
    wishes: tuple[ClientNeeds, ...]
    headroom: float
    """Share of a client's frame rate kept free for bursts."""
    spent_ns: int
    """Time of each SLO spent on neither network nor run."""
    floor: float
    """No less accurate DNN may serve anybody."""
    workers: int
    kinds: tuple[int, ...] = ()
    """Kind of each worker, where there are several: 0 is planned with `latency_ns`."""
    other_latency_ns: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """The same run times on kinds 1, 2 and so on."""

    def zoo(self) -> Zoo:
        tables = (self.latency_ns, *self.other_latency_ns)
        count = len(tables)
        return make_zoo(
            [each for each in self.accuracy for _ in tables],
            [table[dnn] for dnn in range(len(self.accuracy)) for table in tables],
            count,
        )

    def clients(self, zoo: Zoo) -> list[Client]:
        """The clients as the mapping sees them."""
        return [self._client(zoo, wish) for wish in self.wishes]

    def _client(self, zoo: Zoo, wish: ClientNeeds) -> Client:
        pinned = None
        if wish.pinned >= 0:
            # Pinned to what is not in the zoo: nobody can serve it.
            known = wish.pinned in self.variants
            pinned = self.variants.index(wish.pinned) if known else len(self.variants)
        fps = max(wish.fps, 1.0) * (1.0 + self.headroom)
        limits = self.limits(wish)
        return make_client(zoo, wish.number, fps, limits.budgets_ns, limits.floor, pinned)

    def limits(self, wish: ClientNeeds) -> ClientLimits:
        """The limits that a client's network, source and wishes set."""
        budgets_ns = budgets(wish, self.input_sizes, self.spent_ns)
        if wish.pinned < 0 and wish.source_size:
            # Larger inputs would show a DNN nothing more; the smallest is for everybody.
            most = max(wish.source_size, min(self.input_sizes))
            budgets_ns = [
                left_ns if side <= most else 0.0
                for side, left_ns in zip(self.input_sizes, budgets_ns, strict=True)
            ]
        floor = max(self.floor, wish.accuracy_floor)
        left_ns = wish.slo_ns - self.spent_ns - wish.round_trip_ns
        return ClientLimits(left_ns, budgets_ns, floor, wish.pinned >= 0)


def budgets(wish: ClientNeeds, input_sizes: Sequence[int], spent_ns: int) -> list[float]:
    """Time that the network leaves for waiting and running, by input size: the SLO less s / W and
    the way there and back (section IV-A); nothing where it could not even carry the frames as
    fast as they come, for then each would be later than the last."""
    left_ns = float(wish.slo_ns - spent_ns)
    bandwidth_bps = wish.bandwidth_bps
    if bandwidth_bps <= 0:
        # Until it has measured its network it is given the smallest input.
        return [left_ns if side == min(input_sizes) else 0.0 for side in input_sizes]
    left_ns -= wish.round_trip_ns
    bits_max = bandwidth_bps / wish.fps if wish.fps > 0 else float("inf")
    ns_per_bit = SECOND / bandwidth_bps
    known = FrameBits()
    known.by_side = wish.bits_by_side
    sizes_bits = [known.of(side) for side in input_sizes]
    return [left_ns - bits * ns_per_bit if bits <= bits_max else 0.0 for bits in sizes_bits]


class Post(NamedTuple):
    """The task of one worker."""

    dnn: int
    batch: int
    clients: tuple[int, ...]
    """Their numbers; where there are none it goes on as it is."""
    network_share: float = 1.0
    """Of the time that is left for their networks, which clients may fill."""


class Assignment(NamedTuple):
    """A plan as the router needs it."""

    posts: tuple[Post, ...]
    left_out: tuple[tuple[int, int], ...]
    """Clients that nobody serves now, each with the smallest DNN that it would take."""


def assignment_of(plan: MappingPlan, input_sizes: Sequence[int], kinds: int = 1) -> Assignment:
    """The plan without what it was made from."""
    by_size = sorted(range(len(input_sizes)), key=lambda dnn: (input_sizes[dnn], dnn))
    posts = [
        Post(
            share.dnn // kinds,
            share.batch,
            tuple(client.number for client in share.clients),
            share.network_share,
        )
        for share in plan.shares
    ]
    left_out: list[tuple[int, int]] = []
    for client in plan.left_out:
        takes = [any(client.batch_max[dnn * kinds : (dnn + 1) * kinds]) for dnn in by_size]
        smallest = by_size[takes.index(True)] if any(takes) else by_size[0]
        left_out.append((client.number, smallest))
    return Assignment(tuple(posts), tuple(left_out))


def answer(
    decider: Decider, question: MappingProblem, expired: Callable[[], bool] = never
) -> Assignment:
    """Decide; once `expired` says so, the best so far is the answer."""
    decider.use(question.zoo(), question.kinds or (0,) * question.workers)
    clients = question.clients(decider.zoo)
    plan = decider.decide(clients, question.workers, expired, question.kinds)
    if decider.effort.selection != "published":
        limits = {wish.number: question.limits(wish) for wish in question.wishes}
        plan = raise_dnns(decider.zoo, plan, question.input_sizes, limits)
    return assignment_of(plan, question.input_sizes, decider.zoo.kinds)
