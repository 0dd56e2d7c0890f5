"""Backends that still load their models: the others serve as if nobody had come."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

import pytest

from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, Request
from fermata.router.policies.catalog import build_sources
from fermata.router.policies.family import family_of

MODELS, SERVING, NEWCOMERS = 10, 4, 8
SLO_NS = ms(50)
FULL_RPS = SERVING * 8 / 0.012
"""What those who serve can do with batches of 8 on the fastest variants."""
END_NS = 2 * SECOND


@dataclass
class Cluster:
    """An engine, and backends that take as long as profiled; a batch of b runs b + 4 ms."""

    policy: str
    options: Mapping[str, object]
    variants: int
    now_ns: int = 0
    good: int = 0
    bad: int = 0
    agenda: list[tuple[int, int, int]] = field(default_factory=list)
    """Ends of batches: (when, backend, run time)."""

    def __post_init__(self) -> None:
        costs = Costs()
        families = []
        for application in range(MODELS):
            first = application * self.variants
            numbers = tuple(range(first, first + self.variants))
            for place, variant in enumerate(numbers):
                slower = 1.0 + 0.5 * place
                costs.add(variant, [ms((4 + size) * slower) for size in range(1, 17)])
            accuracy = tuple(0.7 + 0.05 * place for place in range(self.variants))
            families.append(
                family_of(application, f"{application}", SLO_NS, numbers, first, accuracy)
            )
        self.engine = Engine(costs)
        rng = random.Random(1)
        for source in build_sources(self.policy, self.options, families, rng):
            self.engine.add_application(source)
        for backend in range(100, 100 + SERVING):
            self.engine.on_backend_up(0, backend)

    def play(self, rate_rps: float, loads: list[tuple[int, int, frozenset[int]]]) -> float:
        """The bad share of Poisson requests; `loads` are (when, backend, what it holds then)."""
        rng = random.Random(2)
        loads = sorted(loads, reverse=True)
        rid, arrival_ns = 0, 0
        while arrival_ns < END_NS:
            arrival_ns += 1 + int(rng.expovariate(rate_rps) * SECOND)
            while loads and loads[-1][0] <= arrival_ns:
                at_ns, backend, held = loads.pop()
                self.run_until(at_ns)
                if backend in self.engine.backend_rank:
                    self.engine.on_resident(at_ns, backend, held)
                else:
                    self.engine.on_backend_up(at_ns, backend, resident=held)
                self.settle()
            self.run_until(arrival_ns)
            request = Request(rid, rng.randrange(MODELS), arrival_ns, arrival_ns + SLO_NS)
            self.engine.on_request(arrival_ns, request)
            self.settle()
            rid += 1
        self.run_until(END_NS + SECOND)
        assert self.good + self.bad == rid
        return self.bad / rid

    def run_until(self, to_ns: int) -> None:
        while True:
            end_ns = self.agenda[0][0] if self.agenda else NEVER
            wake_ns = self.engine.wake_at_ns()
            if min(end_ns, wake_ns) > to_ns:
                self.now_ns = to_ns
                return
            self.now_ns = min(end_ns, wake_ns)
            if end_ns <= wake_ns:
                _, backend, run_ns = heappop(self.agenda)
                batch = self.engine.on_done(self.now_ns, backend, run_ns)
                late = sum(each.deadline_ns < self.now_ns for each in batch.requests)
                self.bad += late
                self.good += len(batch.requests) - late
            else:
                self.engine.on_time(self.now_ns)
            self.settle()

    def settle(self) -> None:
        for effect in self.engine.take_effects():
            if isinstance(effect, Dispatch):
                batch = effect.batch
                run_ns = self.engine.costs.of(batch.variant).p50_ns[len(batch.requests)]
                heappush(self.agenda, (self.now_ns + run_ns, effect.backend, run_ns))
            elif isinstance(effect, Drop):
                self.bad += 1


NOTHING = [(0, backend, frozenset[int]()) for backend in range(NEWCOMERS)]


def one_after_another(variants: int) -> list[tuple[int, int, frozenset[int]]]:
    """Newcomers that load one application more every 150 ms, none at the same time."""
    return [
        (ms(150 * step + 18 * backend), backend, frozenset(range(step * variants)))
        for backend in range(NEWCOMERS)
        for step in range(MODELS + 1)
    ]


POLICIES: list[tuple[str, Mapping[str, object], int]] = [
    ("deferred", {}, 1),
    ("deferred", {"hold": "auto"}, 1),
    ("eager", {}, 1),
    ("batch-queues", {}, 1),
    ("central-queue", {}, 1),
    ("central-queue", {}, 3),
    ("jellyfish-plus", {}, 3),
]


@pytest.mark.parametrize(("policy", "options", "variants"), POLICIES)
@pytest.mark.parametrize("load", [0.6, 1.2])
def test_newcomers_are_no_harm_and_soon_a_help(
    policy: str, options: Mapping[str, object], variants: int, load: float
) -> None:
    alone = Cluster(policy, options, variants).play(load * FULL_RPS, [])
    beside = Cluster(policy, options, variants).play(load * FULL_RPS, NOTHING)
    loading = one_after_another(variants)
    helped = Cluster(policy, options, variants).play(load * FULL_RPS, loading)
    assert beside <= alone + 0.01
    assert helped <= alone + 0.01
    assert helped < 0.8 * alone or alone < 0.02
