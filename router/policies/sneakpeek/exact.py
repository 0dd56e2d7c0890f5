"""The best order and variants of few groups on one worker: a Pareto search over subsets."""

from collections.abc import Iterator

from fermata.router.policies.sneakpeek.problem import INITIAL, Worker
from fermata.router.policies.sneakpeek.worth import RunTable

NODES_A_SLICE = 40
"""Nodes between two chances for others to run."""
NOTHING = 1e-12
"""Gains below it are rounding."""


class Node:
    """A subset of the groups run, ending on one variant: how long it took and what it was worth."""

    __slots__ = ("at_ns", "before", "done", "group", "resident", "table", "worth")

    def __init__(
        self,
        done: int,
        at_ns: int,
        worth: float,
        resident: int,
        group: int,
        table: RunTable | None,
        before: "Node | None",
    ) -> None:
        self.done = done
        """Bits of the groups that have run or ended."""
        self.at_ns = at_ns
        self.worth = worth
        self.resident = resident
        self.group = group
        self.table = table
        """None where the group ends at once."""
        self.before = before

    def path(self) -> list[tuple[int, RunTable | None]]:
        """(group, how it runs) in order."""
        steps: list[tuple[int, RunTable | None]] = []
        node: Node | None = self
        while node is not None and node.before is not None:
            steps.append((node.group, node.table))
            node = node.before
        steps.reverse()
        return steps


class ExactSearch:
    """All orders of groups and one variant for each (Algorithm 1's brute force), found without
    enumeration: of two ways to run the same groups that leave the same model resident, one that is
    no later and no worse makes the other pointless, since penalties only grow with time. A way is
    dropped, too, when it could not pass the best known even if all that is left started at once.
    """

    def __init__(
        self,
        worker: Worker,
        options: list[list[RunTable]],
        instants: list[float],
        nodes_max: int,
        floor: float = -1.0,
    ) -> None:
        self.worker = worker
        self.options = options
        """By group: its tables on every variant that may run it."""
        self.instants = instants
        """By group: what ending it at once is worth; negative: must run."""
        self.nodes_left = nodes_max
        self.best_worth = floor
        """Known to be reachable; the search looks for more."""
        self.best: Node | None = None
        """None where nothing passes the floor."""
        self.complete = False
        """Whether the search came to its end, so that its answer is the optimum."""
        self.most = [
            max([instant, 0.0, *[table.from_there[0] for table in tables]])
            for instant, tables in zip(instants, options, strict=True)
        ]
        """By group: what it could be worth at most, whenever it starts."""

    def run(self) -> Iterator[None]:
        """Search; pauses now and then."""
        count = len(self.options)
        root = Node(0, self.worker.free_at_ns, 0.0, INITIAL, -1, None, None)
        layer: list[Node] = [root]
        for _ in range(count):
            fronts: dict[tuple[int, int], list[Node]] = {}
            for node in layer:
                self.nodes_left -= 1
                if self.nodes_left < 0:
                    return
                if self.nodes_left % NODES_A_SLICE == 0:
                    yield
                self._expand(node, fronts)
            # The most promising first: a good leaf early prunes the others.
            layer = [node for front in fronts.values() for node in front]
            layer.sort(key=_worth, reverse=True)
        self.complete = True

    def _expand(self, node: Node, fronts: dict[tuple[int, int], list[Node]]) -> None:
        worker, at_ns, done = self.worker, node.at_ns, node.done
        resident = node.resident
        room = node.worth - self.best_worth - NOTHING
        for group, most in enumerate(self.most):
            if not done >> group & 1:
                room += most
        if room <= 0.0:
            return
        children: list[tuple[int, RunTable | None, float, int]] = []
        """(group, table, its worth, its end)"""
        bounds: list[float] = []
        groups: list[int] = []
        bound = node.worth
        for group, tables in enumerate(self.options):
            if done >> group & 1:
                continue
            instant = self.instants[group]
            most = instant if instant > 0.0 else 0.0
            if instant >= 0.0 and node.resident == INITIAL and group > node.group:
                # Ended groups first and in order: they take no time, so one order is enough.
                children.append((group, None, instant, at_ns))
            # On a variant that falls short of the group's best by all the room there is, nothing
            # that follows could pass the best known: not looked at, now or later.
            least = self.most[group] - room
            for table in tables:
                if table.from_there[0] <= least:
                    continue
                variant = table.variant
                start_ns = at_ns
                if variant != resident:
                    start_ns += worker.swap_ns(resident, variant)
                worth = table.worth(start_ns)
                if worth > most:
                    most = worth
                children.append((group, table, worth, start_ns + table.duration_ns))
            bound += most
            bounds.append(most)
            groups.append(group)
        if bound <= self.best_worth + NOTHING:
            return
        most_of = dict(zip(groups, bounds, strict=True))
        last = len(groups) == 1
        for group, option, worth, end_ns in children:
            if bound - most_of[group] + worth <= self.best_worth + NOTHING:
                continue
            after = resident if option is None else worker.after(resident, option.variant)
            child = Node(done | 1 << group, end_ns, node.worth + worth, after, group, option, node)
            if last:
                self.best_worth, self.best = child.worth, child
            else:
                _insert(fronts, child)


def _worth(node: Node) -> float:
    return node.worth


def _insert(fronts: dict[tuple[int, int], list[Node]], node: Node) -> None:
    key = (node.done, node.resident)
    front = fronts.get(key)
    if front is None:
        fronts[key] = [node]
        return
    at_ns, worth = node.at_ns, node.worth
    for other in front:
        if other.at_ns <= at_ns and other.worth >= worth:
            return
    kept = [other for other in front if other.at_ns < at_ns or other.worth > worth]
    kept.append(node)
    fronts[key] = kept
