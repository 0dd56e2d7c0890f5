"""The optimum of Jellyfish's problem P1, or a bound on it, by mixed-integer programming."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import highspy
import pulp

from fermata.router.policies.jellyfish.problem import UNITS_PER_FPS, Client, Zoo

GAP = 1e-7


@dataclass(frozen=True, slots=True)
class Optimum:
    """As many clients as can be served, and the most accuracy times rate that they can get."""

    served: int
    value: float
    """Eq. (1)."""
    proven: bool
    """False: time was over before, and both are bounds that no plan exceeds."""


@dataclass(frozen=True, slots=True)
class Way:
    """A DNN run in batches of one size; every worker of a kind is like the others."""

    dnn: int
    capacity: int
    clients: tuple[int, ...]
    """Indices of those who meet their SLO there."""


def ways_to_serve(zoo: Zoo, clients: Sequence[Client]) -> list[Way]:
    """Each DNN and batch size that serves somebody and that no smaller batch makes needless."""
    divisor = gcd(*(client.load for client in clients))
    ways: list[Way] = []
    for dnn in range(len(zoo.accuracy)):
        rows: list[Way] = []
        for batch in range(1, len(zoo.capacity[dnn])):
            able = tuple(i for i, each in enumerate(clients) if each.batch_max[dnn] >= batch)
            # All sums of rates are multiples of their divisor: so may the capacities be.
            capacity = min(
                zoo.capacity[dnn][batch] // divisor * divisor,
                sum(clients[index].load for index in able),
            )
            if able and (not rows or capacity > rows[-1].capacity):
                if rows and rows[-1].clients == able:
                    rows.pop()
                rows.append(Way(dnn, capacity, able))
        ways.extend(rows)
    return ways


class Programme:
    """P1 with identical workers taken together: a number of workers for each way, and clients
    assigned to ways. It is P1's relaxation; where its clients can be packed into the workers one
    by one, its optimum is P1's. With `apart`, every worker is by itself and it is P1."""

    def __init__(self, zoo: Zoo, clients: Sequence[Client], workers: int, apart: bool) -> None:
        self.clients = clients
        self.ways = ways_to_serve(zoo, clients)
        if apart:
            self.ways = [way for way in self.ways for _ in range(workers)]
        self.problem = pulp.LpProblem("P1", pulp.LpMaximize)
        high = 1 if apart else workers
        self.count = [
            pulp.LpVariable(f"n{index}", 0, high, pulp.LpInteger) for index in range(len(self.ways))
        ]
        self.assigned = {
            (client, index): pulp.LpVariable(f"x{client}_{index}", cat=pulp.LpBinary)
            for index, way in enumerate(self.ways)
            for client in way.clients
        }
        self.served = pulp.lpSum(self.assigned.values())
        self.value = pulp.lpSum(
            zoo.accuracy[self.ways[index].dnn] * clients[client].load / UNITS_PER_FPS * variable
            for (client, index), variable in self.assigned.items()
        )
        self._constrain(workers, apart)

    def _constrain(self, workers: int, apart: bool) -> None:
        problem = self.problem
        problem += pulp.lpSum(self.count) <= workers
        of_client: dict[int, list[pulp.LpVariable]] = {}
        for (client, index), variable in self.assigned.items():
            of_client.setdefault(client, []).append(variable)
            problem += variable <= self.count[index]
        for variables in of_client.values():
            problem += pulp.lpSum(variables) <= 1
        for index, way in enumerate(self.ways):
            load = pulp.lpSum(
                self.clients[client].load * self.assigned[client, index] for client in way.clients
            )
            problem += load <= way.capacity * self.count[index]
            if apart and index and self.ways[index - 1] is way:
                problem += self.count[index] <= self.count[index - 1]

    def solve(self, seconds: float) -> Optimum:
        """O1, then O2 among the plans that serve as many; bounds of both where time is over."""
        self.problem.setObjective(self.served)
        most = self._run(seconds, 1e-9)
        served = round(pulp.value(self.served)) if most else int(self._bound() + 1e-6)
        if most:
            self.problem += self.served >= served
        self.problem.setObjective(self.value)
        best = self._run(seconds, GAP)
        value = pulp.value(self.value) if best else self._bound()
        return Optimum(served, value, most and best)

    def _run(self, seconds: float, gap: float) -> bool:
        """True if the optimum is found and proven: at a time limit PuLP still says Optimal."""
        solver = pulp.HiGHS(msg=False, timeLimit=seconds, gapRel=gap, threads=1)
        # Its threads are made once for a process; who asks for another number then gets nothing.
        highspy.Highs.resetGlobalScheduler(True)
        self.problem.solve(solver)
        highspy.Highs.resetGlobalScheduler(True)
        return bool(self.problem.sol_status == pulp.LpSolutionOptimal)

    def _bound(self) -> float:
        # The solver is handed the negated objective, to be minimised.
        return -float(self.problem.solverModel.getInfo().mip_dual_bound)

    def packs(self) -> bool:
        """Whether the clients of each way fit its workers one by one."""
        for index, way in enumerate(self.ways):
            loads = [
                self.clients[client].load
                for client in way.clients
                if round(self.assigned[client, index].value() or 0)
            ]
            bins = [way.capacity] * round(self.count[index].value() or 0)
            if not _fit(sorted(loads, reverse=True), bins):
                return False
        return True


def _fit(loads: list[int], bins: list[int]) -> bool:
    """Exact, by backtracking: the largest load goes into each bin of different room in turn."""
    if not loads:
        return True
    for room in {each for each in bins if each >= loads[0]}:
        rest = list(bins)
        rest.remove(room)
        if _fit(loads[1:], [*rest, room - loads[0]]):
            return True
    return False


def optimum(zoo: Zoo, clients: Sequence[Client], workers: int, seconds: float) -> Optimum:
    """The optimum of P1, or a bound on it."""
    together = Programme(zoo, clients, workers, apart=False)
    found = together.solve(seconds)
    if found.proven and together.packs():
        return found
    apart = Programme(zoo, clients, workers, apart=True).solve(seconds)
    if apart.proven:
        return apart
    # Both are relaxations of P1, so that the tighter bound of the two holds.
    if found.served != apart.served:
        return min(found, apart, key=lambda each: each.served)
    return Optimum(found.served, min(found.value, apart.value), False)
