"""Where a search from nothing starts: clients in order of their budgets, cut into runs.

The tightest client bounds its worker's batch, so clients with like budgets belong together. Among
all ways to cut the ordered clients into one run a worker, a dynamic programme finds the best.
"""

from collections.abc import Sequence

from fermata.router.policies.jellyfish.problem import Client, Zoo

WORKERS_AT_ONCE = 12
"""Larger clusters are cut in even parts first, so that the work grows with the clients only."""
LEFT_OUT = -1e6
"""The cost of leaving a client out: more than any accuracy gains (O1 before O2)."""
IMPOSSIBLE = -1e18


def cut(zoo: Zoo, clients: Sequence[Client], workers: int) -> list[list[Client]]:
    """Runs of clients, one for each worker; who is in none is left out."""
    ordered = sorted(clients, key=lambda client: (client.batch_max, client.load), reverse=True)
    parts = -(-workers // WORKERS_AT_ONCE)
    total = sum(client.load for client in ordered)
    groups: list[list[Client]] = [[] for _ in range(parts)]
    passed = 0
    for client in ordered:
        middle = passed + client.load / 2
        groups[min(int(middle * parts / max(1, total)), parts - 1)].append(client)
        passed += client.load
    runs: list[list[Client]] = []
    for part, group in enumerate(groups):
        share = workers * (part + 1) // parts - workers * part // parts
        runs.extend(_cut_part(zoo, group, share))
    return runs


def _cut_part(zoo: Zoo, clients: Sequence[Client], workers: int) -> list[list[Client]]:
    """The best runs: `best[i]` is for the first i clients on the workers so far."""
    count = len(clients)
    values = [_run_values(zoo, clients, first) for first in range(count)]
    best = [LEFT_OUT * index for index in range(count + 1)]
    steps: list[list[int]] = []
    """By worker and end: where its run starts; -1: the last client is left out."""
    for _ in range(workers):
        came = [-1] * (count + 1)
        reached = [IMPOSSIBLE] * (count + 1)
        for first in range(count + 1):
            base = best[first]
            if base > reached[first]:
                # The worker serves nobody.
                reached[first], came[first] = base, first
            if first == count:
                break
            for length, value in enumerate(values[first], start=1):
                if base + value > reached[first + length]:
                    reached[first + length], came[first + length] = base + value, first
        for end in range(1, count + 1):
            if reached[end - 1] + LEFT_OUT > reached[end]:
                reached[end], came[end] = reached[end - 1] + LEFT_OUT, -1
        best = reached
        steps.append(came)
    return _trace_back(clients, steps)


def _trace_back(clients: Sequence[Client], steps: Sequence[Sequence[int]]) -> list[list[Client]]:
    runs: list[list[Client]] = []
    end = len(clients)
    for came in reversed(steps):
        while came[end] < 0:
            end -= 1
        runs.append(list(clients[came[end] : end]))
        end = came[end]
    return runs


def _run_values(zoo: Zoo, clients: Sequence[Client], first: int) -> list[float]:
    """Accuracy times load of the runs that start here, by length, as far as one DNN serves all."""
    values: list[float] = []
    load, dnn = 0, len(zoo.accuracy) - 1
    batch = clients[first].batch_max[dnn]
    for index in range(first, len(clients)):
        load += clients[index].load
        batch = min(batch, clients[index].batch_max[dnn])
        while load > zoo.capacity[dnn][batch]:
            if dnn == 0:
                return values
            dnn -= 1
            batch = min(client.batch_max[dnn] for client in clients[first : index + 1])
        values.append(zoo.accuracy[dnn] * load)
    return values
