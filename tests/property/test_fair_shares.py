"""Fair shares, whoever asks for how much: nobody below the share pays for those above it."""

import random
from dataclasses import dataclass
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_zoo import SOURCES
from small_world import WORKLOADS, Workload, World, examples

from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, DropReason, Request
from fermata.router.core.fairness.shares import FairAdmission
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import DeferredOptions

PLAY_S = 8
SLO_NS = ms(200)
CAPACITY_RPS = 160.0
"""Two backends of 20 + 5 b ms within 200 ms: 31 requests in 175 ms each, less what turns cost."""


@pytest.mark.parametrize("name", SOURCES)
@examples(40)
@given(load=WORKLOADS)
def test_every_policy_keeps_the_rules_with_shares(name: str, load: Workload) -> None:
    world = World(name, load, fair=True)
    world.play()
    world.check_end()
    pools = {id(source.pool): source.pool for source in world.engine.sources}.values()
    for pool in pools:
        assert pool.reserved == pytest.approx(0.0, abs=1e-6)
        assert pool.used >= 0.0
    assert sum(pool.backends for pool in pools) <= world.rank.signals.backends
    for admission in world.engine.admissions:
        assert isinstance(admission, FairAdmission)
        assert admission.queued == pytest.approx(0.0, abs=1e-6)


@dataclass
class Tenant:
    """A client of an application, and what became of its requests."""

    application: int
    client: int
    weight: float
    rps: float
    priority: int = 0
    tenant: int = 0
    slo_ns: int = SLO_NS
    served: int = 0
    refused: int = 0


def play(tenants: list[Tenant], weights: list[float], seed: int) -> None:
    """Serve them for a while, by two backends that share everything."""
    costs = Costs()
    engine = Engine(costs)
    for application, weight in enumerate(weights):
        costs.add(application, [ms(20 + 5 * size) for size in range(1, 40)])
        source = ModelThread(application, DeferredOptions())
        shares = {each.client: each.weight for each in tenants if each.application == application}
        admission = FairAdmission(source, (application,), SLO_NS, weight / min(weights), shares)
        engine.add_application(source, admission=admission)
    for backend in range(2):
        engine.on_backend_up(0, backend)
    rng = random.Random(seed)
    arrivals: list[tuple[int, int, Tenant]] = []
    for number, tenant in enumerate(tenants):
        heappush(arrivals, (int(rng.expovariate(tenant.rps) * SECOND), number, tenant))
    ends: list[tuple[int, int, int]] = []
    by_client = {(each.application, each.client): each for each in tenants}
    rid = now_ns = 0
    while now_ns < PLAY_S * SECOND:
        next_ns, number, tenant = arrivals[0]
        now_ns = min(next_ns, ends[0][0] if ends else NEVER, engine.wake_at_ns())
        if ends and ends[0][0] == now_ns:
            _, backend, run_ns = heappop(ends)
            batch = engine.on_done(now_ns, backend, run_ns)
            for request in batch.requests if now_ns > 2 * SECOND else ():
                by_client[request.application, request.client].served += 1
        elif next_ns == now_ns:
            heappop(arrivals)
            heappush(arrivals, (now_ns + int(rng.expovariate(tenant.rps) * SECOND), number, tenant))
            application, client = tenant.application, tenant.client
            deadline_ns = now_ns + tenant.slo_ns
            request = Request(rid, application, now_ns, deadline_ns, client=client)
            request.priority, request.tenant = tenant.priority, tenant.tenant
            engine.on_request(now_ns, request)
            rid += 1
        else:
            engine.on_time(now_ns)
        for effect in engine.take_effects():
            if isinstance(effect, Dispatch):
                run_ns = effect.batch.expect_ns
                heappush(ends, (effect.batch.start_at_ns + run_ns, effect.backend, run_ns))
            elif isinstance(effect, Drop) and effect.reason == DropReason.SHED:
                refused = effect.request
                by_client[refused.application, refused.client].refused += 1


def fair_share_rps(tenants: list[Tenant], weights: list[float]) -> dict[tuple[int, int], float]:
    """Max-min: applications by weight, then their clients by weight, whoever wants less first."""
    wanted = [sum(t.rps for t in tenants if t.application == a) for a in range(len(weights))]
    given = fill(wanted, weights, CAPACITY_RPS)
    found: dict[tuple[int, int], float] = {}
    for application, rps in enumerate(given):
        mine = [each for each in tenants if each.application == application]
        parts = fill([each.rps for each in mine], [each.weight for each in mine], rps)
        for each, part in zip(mine, parts, strict=True):
            found[application, each.client] = part
    return found


def fill(wanted: list[float], weights: list[float], capacity: float) -> list[float]:
    given = [0.0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index] / weights[index])
    weight = sum(weights)
    for index in order:
        given[index] = min(wanted[index], capacity * weights[index] / weight)
        capacity -= given[index]
        weight -= weights[index]
    return given


TENANTS = st.lists(
    st.lists(
        st.tuples(st.sampled_from([1.0, 1.0, 2.0]), st.sampled_from([8, 20, 60, 400])),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    given_rps=TENANTS, weights=st.lists(st.sampled_from([1.0, 1.0, 3.0]), min_size=3, max_size=3)
)
def test_everyone_gets_most_of_the_fair_share(
    given_rps: list[list[tuple[float, int]]], weights: list[float]
) -> None:
    weights = weights[: len(given_rps)]
    tenants = [
        Tenant(application, 1 + client, weight, float(rps))
        for application, clients in enumerate(given_rps)
        for client, (weight, rps) in enumerate(clients)
    ]
    play(tenants, weights, seed=7)
    shares = fair_share_rps(tenants, weights)
    for tenant in tenants:
        share = shares[tenant.application, tenant.client] * (PLAY_S - 2)
        # Chance alone takes a few of those who send little.
        assert tenant.served >= 0.75 * share - 2.0 * share**0.5, vars(tenant)


def is_served(tenant: Tenant) -> bool:
    """Whether it got nearly all it asked for; chance alone takes some of it."""
    asked = tenant.rps * (PLAY_S - 2)
    return tenant.served >= 0.95 * asked - 2.0 * asked**0.5


@pytest.mark.parametrize("priority", [0, 1])
def test_flood_of_whatever_priority_takes_nobody_elses_share(priority: int) -> None:
    flood = Tenant(0, 1, 1.0, 10 * CAPACITY_RPS, priority)
    quiet = [Tenant(0, 2, 1.0, 0.1 * CAPACITY_RPS), Tenant(0, 3, 1.0, 0.2 * CAPACITY_RPS)]
    play([*quiet, flood], [1.0], seed=7)
    assert all(is_served(each) for each in quiet)


def test_highest_priority_goes_first_within_the_share_of_its_tenant() -> None:
    rest = Tenant(0, 1, 1.0, 10 * CAPACITY_RPS, tenant=9)
    urgent = Tenant(0, 2, 1.0, 0.3 * CAPACITY_RPS, priority=1, tenant=9)
    other = Tenant(0, 3, 1.0, 0.4 * CAPACITY_RPS, tenant=8)
    play([rest, urgent, other], [1.0], seed=7)
    assert is_served(urgent)
    assert is_served(other)
    assert rest.served >= 0.15 * CAPACITY_RPS * (PLAY_S - 2)


@pytest.mark.parametrize("weights", [[1.0, 1.0], [3.0, 1.0], [1.0, 3.0]])
def test_flood_of_whatever_weight_leaves_a_small_application_alone(weights: list[float]) -> None:
    flood = Tenant(0, 1, 1.0, 2.5 * CAPACITY_RPS)
    small = Tenant(1, 1, 1.0, 0.1 * CAPACITY_RPS)
    play([flood, small], weights, seed=7)
    asked = small.rps * (PLAY_S - 2)
    assert small.served >= 0.75 * asked - 2.0 * asked**0.5


@pytest.mark.parametrize("slo_ns", [ms(2), ms(40), ms(2_000), 600 * SECOND])
@pytest.mark.parametrize("rps", [0.1 * CAPACITY_RPS, 10 * CAPACITY_RPS])
def test_odd_deadlines_of_one_are_no_reason_to_refuse_another(slo_ns: int, rps: float) -> None:
    odd = Tenant(0, 1, 1.0, rps, slo_ns=slo_ns)
    usual = Tenant(0, 2, 1.0, 0.6 * CAPACITY_RPS)
    play([odd, usual], [1.0], seed=7)
    assert usual.refused <= 0.01 * usual.rps * PLAY_S


@pytest.mark.parametrize("slo_ns", [ms(2), ms(20), ms(40)])
def test_hopeless_requests_of_one_do_not_lower_what_another_may_have(slo_ns: int) -> None:
    odd = Tenant(0, 1, 1.0, 10 * CAPACITY_RPS, slo_ns=slo_ns)
    usual = Tenant(0, 2, 1.0, 1.6 * CAPACITY_RPS)
    play([odd, usual], [1.0], seed=7)
    assert is_served(usual)
