"""A client's accuracy floor and pinned variant are never overridden, whatever the policy."""

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.engine import Engine
from fermata.router.core.events import Compute, Dispatch, Drop, DropReason, Request
from fermata.router.live.clients.allowed_variants import AllowedVariants
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.family import family_of
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

SLO_NS = ms(100)
FAST, MIDDLE, GOOD = 0, 1, 2
VARIANTS = (
    VariantSpec("fast", (ms(10), ms(14), ms(18), ms(22)), accuracy=0.6),
    VariantSpec("middle", (ms(20), ms(34), ms(48)), accuracy=0.7),
    VariantSpec("good", (ms(50), ms(90)), accuracy=0.8),
)
OPTIONS: dict[str, dict[str, object]] = {
    "central-queue": {},
    "ramsis": {},
    "jellyfish-plus": {},
    "model-switching": {"sustained_rps": [500, 90, 20]},
}


def engine(policy: str, backends: int = 1, options: dict[str, object] | None = None) -> Engine:
    application = ApplicationSpec("task", SLO_NS, VARIANTS)
    given = OPTIONS.get(policy, {}) if options is None else options
    built = assemble(RouterConfig((application,), policy, given, lead_ns=0))
    for backend in range(backends):
        owner = built.ownership.take(backend)
        built.engine.on_backend_up(0, backend, owner=owner)
    built.engine.on_time(ms(60))
    for effect in built.engine.take_effects():
        if isinstance(effect, Compute):
            built.engine.on_computed(ms(60), 0, effect.work())
    return built.engine


def send(made: Engine, rid: int, allowed: frozenset[int] | None, now_ns: int = SECOND) -> None:
    request = Request(rid, 0, now_ns, now_ns + SLO_NS)
    request.allowed = allowed
    made.on_request(now_ns, request)


def finish(made: Engine, dispatch: Dispatch, now_ns: int) -> int:
    """End a batch; returns when it did."""
    now_ns += dispatch.batch.plan_ns
    made.on_done(now_ns, dispatch.backend, dispatch.batch.plan_ns)
    return now_ns


def ran(made: Engine, now_ns: int) -> dict[int, int]:
    """Run all there is to run, one batch after the other; the variant of each request."""
    found: dict[int, int] = {}
    for _ in range(20):
        dispatched = [each for each in made.take_effects() if isinstance(each, Dispatch)]
        if not dispatched:
            break
        for each in dispatched:
            found.update(
                dict.fromkeys([one.rid for one in each.batch.requests], each.batch.variant)
            )
            now_ns = finish(made, each, now_ns)
    return found


@pytest.mark.parametrize("policy", OPTIONS)
@pytest.mark.parametrize("pinned", [FAST, MIDDLE, GOOD])
def test_pinned_variant_runs_in_lulls_and_under_load(policy: str, pinned: int) -> None:
    made = engine(policy, backends=3)
    send(made, 0, frozenset((pinned,)))
    assert ran(made, SECOND)[0] == pinned
    made = engine(policy)
    for rid in range(8):
        send(made, rid, None)
    send(made, 8, frozenset((pinned,)))
    assert ran(made, SECOND).get(8, pinned) == pinned


@pytest.mark.parametrize("policy", OPTIONS)
def test_floor_holds_and_others_share_the_batch(policy: str) -> None:
    made = engine(policy)
    send(made, 0, None)
    for rid in range(1, 5):
        send(made, rid, frozenset((MIDDLE, GOOD)) if rid == 2 else None)
    served = ran(made, SECOND)
    assert served[2] in (MIDDLE, GOOD)
    assert served.keys() >= {0, 1, 2}


@pytest.mark.parametrize("policy", [*OPTIONS, "deferred", "sneakpeek"])
def test_who_allows_nothing_that_runs_is_told_so(policy: str) -> None:
    made = engine(policy)
    send(made, 0, frozenset())
    (drop,) = made.take_effects()
    assert isinstance(drop, Drop)
    assert drop.reason == DropReason.FLOOR


@pytest.mark.parametrize("policy", OPTIONS)
def test_one_who_waits_for_a_load_keeps_nobody_from_running(policy: str) -> None:
    made = engine(policy)
    made.on_resident(SECOND, 0, frozenset((FAST,)))
    send(made, 0, frozenset((GOOD,)))
    assert ran(made, SECOND) == {}
    send(made, 1, None, SECOND + ms(1))
    assert ran(made, SECOND + ms(1)) == {1: FAST}


def test_policy_that_does_not_choose_serves_those_content_with_its_variant() -> None:
    made = engine("deferred")
    send(made, 0, frozenset((FAST, GOOD)))
    send(made, 1, frozenset((GOOD,)))
    (drop,) = [each for each in made.take_effects() if isinstance(each, Drop)]
    assert drop.request.rid == 1


def test_slow_pin_starts_before_an_earlier_deadline() -> None:
    # The pinned run needs 50 of 100 ms, the fast one 10: after the batch under way the pinned
    # request goes first, though two others came before it.
    made = engine("central-queue", options={"hold": "eager"})
    send(made, 0, frozenset((MIDDLE,)))
    for rid in (1, 2):
        send(made, rid, None, SECOND + ms(1))
    send(made, 3, frozenset((GOOD,)), SECOND + ms(2))
    (first,) = [each for each in made.take_effects() if isinstance(each, Dispatch)]
    finish(made, first, SECOND)
    (second,) = [each for each in made.take_effects() if isinstance(each, Dispatch)]
    assert second.batch.variant == GOOD
    assert second.batch.requests[0].rid == 3


def test_cancelled_while_it_waits_for_its_variant() -> None:
    made = engine("central-queue")
    for rid in range(3):
        send(made, rid, frozenset((MIDDLE,)))
    assert made.on_cancel(SECOND, 2)
    assert ran(made, SECOND).keys() == {0, 1}


def test_wishes_name_variants_of_the_application_alone() -> None:
    families = (
        family_of(0, "one", SLO_NS, (0, 1), 0, (0.6, 0.8)),
        family_of(1, "two", SLO_NS, (2, 3), 2, (0.7, 0.9)),
        family_of(2, "unknown", SLO_NS, (4,), 4),
    )
    wishes = AllowedVariants(families, ("small", "large", "small", "large", "only"))
    assert wishes.allowed(0, 0.0, "") is None
    assert wishes.allowed(1, 0.0, "small") == {2}
    assert wishes.allowed(1, 0.8, "") == {3}
    assert wishes.allowed(1, 0.8, "small") == frozenset()
    assert wishes.allowed(0, 0.0, "nobody") == frozenset()
    assert wishes.allowed(2, 0.5, "") == frozenset()
    for number in range(2 * wishes.known_max):
        wishes.allowed(0, number / 1e6, "")
    assert len(wishes.known) <= wishes.known_max


@pytest.mark.parametrize("policy", OPTIONS)
def test_clients_of_a_scenario_get_what_they_insist_on(policy: str) -> None:
    variants = [
        {"name": "fast", "latency_ms": [10, 14, 18, 22], "accuracy": 0.6},
        {"name": "middle", "latency_ms": [20, 34, 48], "accuracy": 0.7},
        {"name": "good", "latency_ms": [50, 90], "accuracy": 0.8},
    ]
    clients = [{"count": 3}, {"accuracy_floor": 0.7}, {"pinned": "fast"}, {"pinned": "good"}]
    scenario = read_scenario(
        {
            "backends": 3,
            "policy": policy,
            "policy_options": OPTIONS[policy],
            "rate_rps": 90,
            "duration_s": 10,
            "applications": [
                {"name": "task", "slo_ms": 150, "variants": variants, "clients": clients}
            ],
        }
    )
    log = simulate(scenario)
    answered = log.end_ns > 0
    served = {
        client: set(log.variant[answered & (log.arrivals.client == client)].tolist())
        for client in range(1, 7)
    }
    assert served[4] <= {MIDDLE, GOOD}
    assert served[5] == {FAST}
    assert served[6] == {GOOD}
    assert report(scenario, log).bad_rate < 0.2
