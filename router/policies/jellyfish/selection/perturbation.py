"""Kicks: what two workers at a time do not find may take three or four.

A kick disturbs a few workers, lets them settle, and keeps what comes of it unless it is worse.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

from fermata.router.policies.jellyfish.problem import Zoo
from fermata.router.policies.jellyfish.selection.search import NOTHING, Search

KICKED = 4
"""Workers that are kicked together."""
WALK = 20
"""Objectives that are chased one after another, at most."""
RUINED = 4
"""Clients that are taken out together, at most."""


def perturb(search: Search) -> None:
    """Disturb a few workers in one of three ways."""
    rng = search.rng
    everyone = range(len(search.workers))
    indices = sorted(rng.sample(everyone, min(KICKED, len(search.workers))))
    workers = [search.workers[index] for index in indices]
    before = [(worker.dnn, worker.clients) for worker in workers]
    left_out = list(search.left_out)
    value = sum(worker.value for worker in workers)
    pairs = list(combinations(indices, 2))
    rng.shuffle(pairs)
    # Half of the effort goes first into serving more, if there are more.
    if left_out and search.splits < search.splits_max / 2:
        _look_for_room(search, indices, pairs)
    elif rng.random() < 0.5:
        _chase_another_objective(search, indices, pairs)
    else:
        _take_some_out(search, indices, pairs)
    while not search.expired() and search.sweep(pairs):
        pass
    now = (-len(search.left_out), sum(worker.value for worker in workers))
    # One more client served counts for more than any accuracy.
    if now < (-len(left_out), value):
        search.left_out = left_out
        for worker, (dnn, clients) in zip(workers, before, strict=True):
            search.set(worker, dnn, clients)


def _chase_another_objective(
    search: Search, indices: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> None:
    """Split each pair once for steps in accuracy of another height."""
    true_zoo, search.zoo = search.zoo, distorted(search.zoo, search.rng)
    for one, other in pairs:
        first, second = search.workers[one], search.workers[other]
        clients = [*first.clients, *second.clients]
        search.rng.shuffle(clients)
        split = search.split(first, second, clients, NOTHING)
        if split is not None:
            search.apply(first, second, split)
    search.zoo = true_zoo
    for index in indices:
        worker = search.workers[index]
        search.set(worker, worker.dnn, worker.clients)


def _look_for_room(
    search: Search, indices: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> None:
    """Chase one objective after another until there is room for somebody left out: the true one
    would lead straight back to where there was none."""
    waiting = len(search.left_out)
    for _ in range(WALK):
        _chase_another_objective(search, indices, pairs)
        search.serve_left_out(only=indices)
        if len(search.left_out) < waiting or search.has_done_enough():
            break


def distorted(zoo: Zoo, rng: Random) -> Zoo:
    """The same zoo with steps in accuracy of another height: mostly lower, some much higher."""
    accuracy = zoo.accuracy[0]
    heights = [accuracy]
    for low, high in pairwise(zoo.accuracy):
        accuracy += (high - low) * rng.expovariate(1.0) ** 2
        heights.append(accuracy)
    return replace(zoo, accuracy=tuple(heights))


def _take_some_out(
    search: Search, indices: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> None:
    """Take a few clients out, let the others spread, and put them back in."""
    everyone = [client for index in indices for client in search.workers[index].clients]
    count = min(len(everyone), search.rng.randint(1, RUINED))
    out = search.rng.sample(everyone, count)
    gone = {client.number for client in out}
    for index in indices:
        worker = search.workers[index]
        stay = tuple(client for client in worker.clients if client.number not in gone)
        search.set(worker, worker.dnn, stay)
    while not search.expired() and search.sweep(pairs):
        pass
    search.left_out.extend(out)
    search.serve_left_out(only=indices)
