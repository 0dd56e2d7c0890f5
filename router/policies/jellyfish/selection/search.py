"""The default selection: local search by exact re-splits, from the previous plan."""

from collections.abc import Callable, Collection, Sequence
from itertools import combinations
from random import Random

from fermata.router.policies.jellyfish.overload import most_served, most_valuable
from fermata.router.policies.jellyfish.problem import Client, MappingPlan, Share, Zoo, make_share
from fermata.router.policies.jellyfish.selection.initial_plan import cut
from fermata.router.policies.jellyfish.selection.split import Split, best_split

NEIGHBOURS = 4
"""Beyond that many workers on either side, by accuracy, a pair is tried by chance only: what two
workers can gain from each other they mostly gain from those like them."""
ALL_PAIRS_UP_TO = 12
SWEEPS_MAX = 6
"""So that the work grows with the workers only; most of the gain is in the first few."""
SPLITS_OF_MOST = 20
"""The cost of finding the most that a pair can serve, in splits."""
WAITING_MAX = 24
"""Clients that are left out, tried together on a pair: those that ask least."""
NOTHING = -1.0
"""Any value is above it."""


class SearchWorker:
    """One worker while the search goes on."""

    __slots__ = ("clients", "dnn", "kind", "load", "value", "version")

    def __init__(self, kind: int = 0) -> None:
        self.kind = kind
        self.dnn = kind
        self.clients: tuple[Client, ...] = ()
        self.load = 0
        self.value = 0.0
        """Accuracy times load, in units."""
        self.version = 0
        """Counts its changes, so that nobody tries the same pair twice."""


class Search:
    """Improves a plan: first as many clients as possible (O1), then accuracy (O2)."""

    def __init__(
        self,
        zoo: Zoo,
        clients: Sequence[Client],
        workers: int,
        rng: Random,
        expired: Callable[[], bool],
        splits_max: int,
        kinds: Sequence[int] = (),
    ) -> None:
        self.zoo = zoo
        self.clients = clients
        self.workers = [SearchWorker(kind) for kind in kinds or (0,) * workers]
        self.left_out: list[Client] = []
        self.kept: frozenset[int] = frozenset()
        """Numbers of clients whose turn it is: nobody may take their place."""
        self.leave_first: Callable[[int], int] = int
        """Among clients that ask for as much, those with the smallest key are left out first."""
        self.rng = rng
        self.expired = expired
        self.tried: dict[tuple[int, int], tuple[int, int]] = {}
        self.splits = 0
        """Pairs that have been split so far, whether or not anything came of it."""
        self.splits_max = splits_max
        """After so many nobody is looked for who could make room: in overload there would be no
        end to it."""

    # Where the search starts

    def start_from(self, previous: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Go on from who was on which worker, (DNN, client numbers) by worker."""
        known = {client.number: client for client in self.clients}
        for worker, (dnn, numbers) in zip(self.workers, previous, strict=False):
            stay = [known.pop(number) for number in numbers if number in known]
            worker.dnn = dnn
            self._keep_what_fits(worker, stay)
        self.left_out.extend(known.values())

    def start_afresh(self) -> None:
        """Start from the best runs of clients with like budgets."""
        runs = cut(self.zoo, self.clients, len(self.workers))
        served = {client.number for run in runs for client in run}
        self.left_out = [client for client in self.clients if client.number not in served]
        for worker, run in zip(self.workers, runs, strict=True):
            self._keep_what_fits(worker, run)

    def _keep_what_fits(self, worker: SearchWorker, clients: list[Client]) -> None:
        """Give the worker these clients and the best DNN for them; who does not fit is left out."""
        clients = sorted(clients, key=lambda client: (client.load, client.number))
        while clients and not self._choose_dnn(worker, clients):
            self.left_out.append(clients.pop(self._least_kept(clients)))
        if not clients:
            self.set(worker, worker.dnn, ())

    def _least_kept(self, clients: Sequence[Client]) -> int:
        """The client to leave: the one that asks most among those whose turn it is not."""
        free = [index for index, each in enumerate(clients) if each.number not in self.kept]
        return free[-1] if free else len(clients) - 1

    def _choose_dnn(self, worker: SearchWorker, clients: Sequence[Client]) -> bool:
        dnn = best_dnn(self.zoo, clients, worker.kind)
        if dnn is None:
            return False
        self.set(worker, dnn, tuple(clients))
        return True

    def set(self, worker: SearchWorker, dnn: int, clients: tuple[Client, ...]) -> None:
        worker.dnn = dnn
        worker.clients = clients
        worker.load = sum(client.load for client in clients)
        worker.value = self.zoo.accuracy[dnn] * worker.load
        worker.version += 1

    # Moves

    def settle(self) -> None:
        """Improve until no pair of workers can, or the time is over."""
        self.serve_left_out()
        self._serve_more()
        for _ in range(SWEEPS_MAX):
            if self.expired() or not (self.sweep(self._pairs()) or self._exchange()):
                break
            self.serve_left_out()
            self._serve_more()

    def _pairs(self) -> list[tuple[int, int]]:
        count = len(self.workers)
        if count <= ALL_PAIRS_UP_TO:
            pairs = list(combinations(range(count), 2))
            self.rng.shuffle(pairs)
            return pairs
        order = sorted(range(count), key=lambda index: (self.workers[index].dnn, index))
        pairs = []
        for place, index in enumerate(order):
            near = order[place + 1 : place + 1 + NEIGHBOURS]
            far = [order[self.rng.randrange(count)] for _ in range(NEIGHBOURS)]
            pairs.extend((min(index, peer), max(index, peer)) for peer in near + far)
        self.rng.shuffle(pairs)
        return [pair for pair in pairs if pair[0] != pair[1]]

    def sweep(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Try every pair once; true if one of them gained."""
        gained = False
        for pair in pairs:
            if self.expired():
                break
            gained |= self._improve(*pair)
        return gained

    def _improve(self, one: int, other: int) -> bool:
        first, second = self.workers[one], self.workers[other]
        versions = (first.version, second.version)
        if self.tried.get((one, other)) == versions:
            return False
        self.tried[one, other] = versions
        clients = first.clients + second.clients
        split = self.split(first, second, clients, _a_little_above(first.value + second.value))
        if split is None:
            return False
        self.apply(first, second, split)
        return True

    def split(
        self, first: SearchWorker, second: SearchWorker, clients: Sequence[Client], above: float
    ) -> Split | None:
        """The best split of these clients over two workers; None unless its value is above."""
        self.splits += 1
        return best_split(self.zoo, clients, above, (first.kind, second.kind))

    def apply(self, first: SearchWorker, second: SearchWorker, split: Split) -> None:
        if first.kind != second.kind:
            if split.first_dnn % self.zoo.kinds != first.kind:
                first, second = second, first
        elif abs(first.dnn - split.first_dnn) + abs(second.dnn - split.second_dnn) > abs(
            first.dnn - split.second_dnn
        ) + abs(second.dnn - split.first_dnn):
            first, second = second, first
        self.set(first, split.first_dnn, split.first)
        self.set(second, split.second_dnn, split.second)

    # Clients that nobody serves

    def serve_left_out(self, only: Sequence[int] | None = None) -> None:
        """Try to serve whoever is left out, those who ask least first, each on one worker; where
        only these workers count, on two of them as well."""
        waiting = sorted(self.left_out, key=lambda client: (client.load, client.number))
        self.left_out = []
        for client in waiting:
            placed = self._add_to_one(client, self._some_workers() if only is None else only)
            if not placed and not (only and self._add_to_pair(client, only)):
                self.left_out.append(client)

    def _serve_more(self) -> None:
        """Leave some out for others, where that serves more. One or two workers are solved exactly,
        of more each pair is."""
        if not self.left_out:
            return
        if len(self.workers) <= 2:
            self._serve_most(range(len(self.workers)), ())
            return
        for pair in self._pairs():
            if self.has_done_enough() or not self.left_out:
                return
            self._serve_most(pair, ())
            self.splits += SPLITS_OF_MOST

    def has_done_enough(self) -> bool:
        """Whether what is left out must stay so."""
        return self.splits >= self.splits_max or self.expired()

    def _serve_most(self, indices: Sequence[int], forced: Collection[int]) -> bool:
        """Serve as many as one or two workers can of their own clients and those left out; false
        where these are no more than now, or those forced cannot all be served."""
        workers = [self.workers[index] for index in indices]
        own = [client for worker in workers for client in worker.clients]
        waiting = sorted(self.left_out, key=lambda client: (client.load, client.number))
        waiting.sort(key=lambda client: client.number not in forced)
        clients = own + waiting[:WAITING_MAX]
        must = {client.number for client in own if client.number in self.kept}.union(forced)
        kinds = [worker.kind for worker in workers]
        chosen = most_served(self.zoo, clients, len(workers), must, self.leave_first, kinds)
        if not chosen or not (forced or len(chosen) > len(own) or len(workers) == 1):
            return False
        if len(workers) == 1:
            dnn, chosen = most_valuable(self.zoo, clients, len(chosen), must, kinds[0])
            value = self.zoo.accuracy[dnn] * sum(client.load for client in chosen)
            as_now = len(chosen) == len(own) and value <= _a_little_above(workers[0].value)
            if as_now and not forced:
                return False
            self.set(workers[0], dnn, tuple(chosen))
        else:
            split = self.split(workers[0], workers[1], chosen, NOTHING)
            assert split is not None, "two workers do not serve what they were found to"
            self.apply(workers[0], workers[1], split)
        served = {client.number for client in chosen}
        known = {client.number for client in clients}
        self.left_out = [client for client in self.left_out if client.number not in known]
        self.left_out += [client for client in clients if client.number not in served]
        return True

    def _some_workers(self) -> Sequence[int]:
        """All of a small cluster; of a large one some, or each client would be tried on all."""
        count = len(self.workers)
        everyone = range(count)
        return everyone if count <= ALL_PAIRS_UP_TO else self.rng.sample(everyone, ALL_PAIRS_UP_TO)

    def _add_to_one(self, client: Client, indices: Sequence[int]) -> bool:
        """Add it to the worker where that costs least accuracy."""
        best: tuple[float, int, int] | None = None
        for index in indices:
            worker = self.workers[index]
            dnn = best_dnn(self.zoo, (*worker.clients, client), worker.kind)
            if dnn is None:
                continue
            gain = self.zoo.accuracy[dnn] * (worker.load + client.load) - worker.value
            if best is None or gain > best[0]:
                best = (gain, index, dnn)
        if best is None:
            return False
        worker = self.workers[best[1]]
        self.set(worker, best[2], (*worker.clients, client))
        return True

    def _add_to_pair(self, client: Client, indices: Sequence[int]) -> bool:
        for one, other in combinations(indices, 2):
            if self.has_done_enough():
                return False
            first, second = self.workers[one], self.workers[other]
            clients = (*first.clients, *second.clients, client)
            split = self.split(first, second, clients, NOTHING)
            if split is not None:
                self.apply(first, second, split)
                return True
        return False

    def _exchange(self) -> bool:
        """Leave somebody else out, where as many are served and accuracy gains."""
        gained = False
        for waiting in list(self.left_out):
            for one, other in self._pairs() if len(self.workers) > 1 else ():
                if self.has_done_enough():
                    return gained
                if self._take_in_place(one, other, waiting):
                    gained = True
                    break
        return gained

    def _take_in_place(self, one: int, other: int, waiting: Client) -> bool:
        first, second = self.workers[one], self.workers[other]
        clients = first.clients + second.clients
        above = _a_little_above(first.value + second.value)
        best: tuple[Split, Client] | None = None
        for index, leaving in enumerate(clients):
            if leaving.number in self.kept or _asks_no_more(leaving, waiting):
                continue
            others = (*clients[:index], *clients[index + 1 :], waiting)
            split = self.split(first, second, others, above)
            if split is not None:
                above, best = split.value, (split, leaving)
        if best is None:
            return False
        self.apply(first, second, best[0])
        self.left_out.remove(waiting)
        self.left_out.append(best[1])
        return True

    def make_room(self, waiting: Client) -> bool:
        """Serve a client whose turn has come in the place of others: of as few as possible where
        there are one or two workers, else of one if that will do, or of as many on one worker as
        it takes. Those with the smallest key leave first."""
        if len(self.workers) <= 2:
            return self._serve_most(range(len(self.workers)), {waiting.number})
        served = [
            (self.leave_first(client.number), index, client)
            for index, worker in enumerate(self.workers)
            for client in worker.clients
            if client.number not in self.kept
        ]
        served.sort(key=lambda entry: (entry[0], entry[2].number))
        for _, index, leaving in served:
            stay = [client for client in self.workers[index].clients if client is not leaving]
            if self._choose_dnn(self.workers[index], [*stay, waiting]):
                self._exchanged(waiting, [leaving])
                return True
        for worker in self.workers:
            removable = [entry[2] for entry in served if entry[2] in worker.clients]
            stay = list(worker.clients)
            for count, leaving in enumerate(removable, start=1):
                stay.remove(leaving)
                if self._choose_dnn(worker, [*stay, waiting]):
                    self._exchanged(waiting, removable[:count])
                    return True
        return False

    def _exchanged(self, served: Client, leaving: Sequence[Client]) -> None:
        self.left_out.remove(served)
        self.left_out.extend(leaving)

    # The result

    def plan(self) -> MappingPlan:
        shares: list[Share] = []
        for worker in self.workers:
            shares.append(make_share(self.zoo, worker.dnn, worker.clients))
        return MappingPlan(tuple(shares), tuple(self.left_out))


def best_dnn(zoo: Zoo, clients: Sequence[Client], kind: int = 0) -> int | None:
    """The most accurate DNN that serves all these clients on one worker of this kind."""
    load = sum(client.load for client in clients)
    for dnn in range(len(zoo.accuracy) - zoo.kinds + kind, -1, -zoo.kinds):
        batch = min(client.batch_max[dnn] for client in clients)
        if load <= zoo.capacity[dnn][batch]:
            return dnn
    return None


def _asks_no_more(one: Client, other: Client) -> bool:
    """Whether to serve `one` earns as much as `other`, and is as easy, wherever that is."""
    return one.load == other.load and all(
        mine >= its for mine, its in zip(one.batch_max, other.batch_max, strict=True)
    )


def _a_little_above(value: float) -> float:
    """A gain must be more than rounding, or two workers would trade places for ever."""
    return value + 1e-9 * abs(value)
