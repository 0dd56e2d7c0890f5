"""One decision: which DNN and batch each worker runs, and whom it serves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from fermata.router.policies.jellyfish.problem import Client, MappingPlan, Share, Zoo, servable
from fermata.router.policies.jellyfish.rotation import Rotation
from fermata.router.policies.jellyfish.selection.annealing import Cooling, select_dnns
from fermata.router.policies.jellyfish.selection.perturbation import perturb
from fermata.router.policies.jellyfish.selection.search import Search

SELECTIONS = ("resplit", "published")
SPLITS = 450
WORKERS_OF_SPLITS = 8
"""Where not all can be served, so many workers have each of these counts of splits to find room."""


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """How hard a decision is looked for."""

    selection: str = "resplit"
    """`resplit`: exact re-splits of pairs of workers; `published`: Algorithms 1 and 2."""
    splits: int = SPLITS
    """For `resplit`: pairs of workers that are split, in all; those that the first local optimum
    leaves go into perturbation. A count and not a time, so that one seed gives one plan."""
    cooling: Cooling = field(default_factory=Cooling)
    """For `published`."""


def never() -> bool:
    """No limit but the effort's own."""
    return False


class Decider:
    """Decides again and again, each time from the previous decision."""

    def __init__(self, zoo: Zoo, effort: SearchEffort, turn: int, rng: Random) -> None:
        self.zoo = zoo
        self.effort = effort
        self.rng = rng
        self.turns = Rotation(turn)
        self.previous: MappingPlan | None = None
        self.kinds: tuple[int, ...] = ()
        """Of the workers that are planned for."""

    def decide(
        self,
        clients: Sequence[Client],
        workers: int,
        expired: Callable[[], bool] = never,
        kinds: Sequence[int] = (),
    ) -> MappingPlan:
        """A plan for so many workers, of these kinds where there are several. Once `expired` says
        so, the best so far is returned."""
        self.kinds = tuple(kinds) or (0,) * workers
        able = [client for client in clients if servable(self.zoo, client)]
        if workers == 0 or not able:
            plan = MappingPlan(tuple(self._idle(index) for index in range(workers)), tuple(able))
        elif self.effort.selection == "published":
            plan = self._anneal(able, workers, expired)
        else:
            plan = self._search(able, workers, expired)
        self.turns.note(plan)
        taken = {client.number for client in able}
        hopeless = tuple(client for client in clients if client.number not in taken)
        self.previous = MappingPlan(plan.shares, plan.left_out + hopeless)
        return self.previous

    def _anneal(
        self, clients: Sequence[Client], workers: int, expired: Callable[[], bool]
    ) -> MappingPlan:
        previous = self.previous.shares if self.previous is not None else ()
        # The bootstrap is the smallest DNN everywhere.
        dnns = [
            previous[index].dnn if index < len(previous) else self.kinds[index]
            for index in range(workers)
        ]
        return select_dnns(self.zoo, clients, dnns, self.rng, self.effort.cooling, expired)

    def _search(
        self, clients: Sequence[Client], workers: int, expired: Callable[[], bool]
    ) -> MappingPlan:
        splits_max = self.effort.splits * max(1, workers // WORKERS_OF_SPLITS)
        search = Search(self.zoo, clients, workers, self.rng, expired, splits_max, self.kinds)
        search.kept = self.turns.kept()
        search.leave_first = self.turns.leave_first
        if self.previous is None or self.previous.served == 0:
            search.start_afresh()
        else:
            search.start_from(
                [
                    (share.dnn, [client.number for client in share.clients])
                    for share in self.previous.shares
                ]
            )
        search.settle()
        if workers > 2:
            # Two workers are solved exactly as they are.
            for _ in range(self.effort.splits):
                if search.splits >= self.effort.splits or expired():
                    break
                perturb(search)
            search.settle()
        self._take_turns(search)
        return search.plan()

    def _take_turns(self, search: Search) -> None:
        waiting = {client.number: client for client in search.left_out}
        for number in self.turns.owed(waiting):
            if waiting[number] in search.left_out:
                search.make_room(waiting[number])
            search.kept |= {number}
        # Clients that have made room may find some elsewhere.
        search.serve_left_out()

    def use(self, zoo: Zoo, kinds: tuple[int, ...]) -> None:
        """Plan with this zoo from now on; plans for workers of other kinds are forgotten."""
        if kinds != self.kinds and max(zoo.kinds, self.zoo.kinds) > 1:
            self.previous = None
        self.zoo = zoo

    def _idle(self, index: int) -> Share:
        previous = self.previous.shares if self.previous is not None else ()
        dnn = previous[index].dnn if index < len(previous) else self.kinds[index]
        return Share(dnn, 0, ())
