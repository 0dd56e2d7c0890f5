"""Policies change while a router serves: nobody who waits is lost, and what runs goes on."""

import itertools
import random

import pytest

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND, ms
from fermata.router.assembly import Assembly, RouterConfig, assemble
from fermata.router.core.events import Answer, Compute, Dispatch, Drop, Request
from fermata.router.live.policy_change import (
    AppliedPolicy,
    PolicySet,
    change_policies,
    policies_of,
    with_policies,
)
from fermata.router.policies.application import ApplicationSpec, VariantSpec

POOLED = ["deferred", "central-queue", "batch-queues", "jellyfish-plus", "eager", "timeout"]
LANES = ["routing", "single-queue", "jellyfish", "sneakpeek", "ramsis"]
OPTIONS: dict[str, dict[str, object]] = {
    "sneakpeek": {"window_ms": 10},
    "ramsis": {"load_rps": 60.0, "bins": 8},
}
SLO_NS = ms(200)


def spec(name: str, policy: str) -> ApplicationSpec:
    tables = ((1, 3, 0.7, 160), (2, 6, 0.8, 224))
    variants = tuple(
        VariantSpec(
            f"{name}-{place}",
            tuple(ms(beta + alpha * size) for size in range(1, 9)),
            accuracy=accuracy,
            input_size=side,
        )
        for place, (alpha, beta, accuracy, side) in enumerate(tables)
    )
    options = OPTIONS.get(policy, {})
    return ApplicationSpec(name, SLO_NS, variants, policy=policy, policy_options=options)


def config_of(*policies: str, **more: object) -> RouterConfig:
    specs = tuple(spec(f"app{number}", policy) for number, policy in enumerate(policies))
    return RouterConfig(specs, lead_ns=0, **more)  # type: ignore[arg-type]


class World:
    """An engine with backends that take as long as profiled."""

    def __init__(self, config: RouterConfig, backends: int) -> None:
        self.built: Assembly = assemble(config)
        self.engine = self.built.engine
        self.now_ns = 0
        self.rids = itertools.count()
        self.sent = 0
        self.good: set[int] = set()
        self.bad: dict[int, str] = {}
        self.ends: dict[int, list[tuple[int, int]]] = {}
        for backend in range(backends):
            self.ends[backend] = []
            owner = self.built.ownership.take(backend)
            self.engine.on_backend_up(0, backend, owner=owner)
        self.settle()

    def settle(self) -> None:
        while self.engine.outbox.effects:
            for effect in self.engine.take_effects():
                if isinstance(effect, Dispatch):
                    begin_ns = max([self.now_ns, *(end for end, _ in self.ends[effect.backend])])
                    run_ns = effect.batch.expect_ns
                    self.ends[effect.backend].append((begin_ns + run_ns, run_ns))
                elif isinstance(effect, Drop):
                    assert effect.request.rid not in self.bad
                    self.bad[effect.request.rid] = effect.reason
                elif isinstance(effect, Answer):
                    self.good.add(effect.request.rid)
                elif isinstance(effect, Compute):
                    result = effect.work()
                    self.engine.on_computed(self.now_ns, effect.application, result)

    def until(self, at_ns: int) -> None:
        while True:
            due = [(each[0][0], backend) for backend, each in self.ends.items() if each]
            end_ns, backend = min(due, default=(at_ns + 1, -1))
            wake_ns = self.engine.wake_at_ns()
            if min(end_ns, wake_ns) > at_ns:
                self.now_ns = at_ns
                return
            if end_ns <= wake_ns:
                self.now_ns = end_ns
                _, run_ns = self.ends[backend].pop(0)
                batch = self.engine.on_done(end_ns, backend, run_ns)
                for request in batch.requests:
                    assert request.rid not in self.good
                    self.good.add(request.rid)
            else:
                self.now_ns = max(self.now_ns, wake_ns)
                self.engine.on_time(self.now_ns)
            self.settle()

    def submit(self, application: int) -> None:
        self.sent += 1
        rid = next(self.rids)
        self.engine.on_request(
            self.now_ns, Request(rid, application, self.now_ns, self.now_ns + SLO_NS)
        )
        self.settle()

    def play(self, rng: random.Random, rate_rps: float, for_ns: int) -> None:
        until_ns = self.now_ns + for_ns
        while self.now_ns < until_ns:
            self.until(self.now_ns + int(rng.expovariate(rate_rps) * SECOND))
            self.submit(rng.randrange(len(self.built.families)))

    def change(self, wanted: PolicySet) -> list[str]:
        self.settle()
        changed = change_policies(self.now_ns, self.built, wanted)
        self.settle()
        return changed

    def finish(self) -> None:
        """Let everything end; each request has ended once."""
        self.until(self.now_ns + 20 * SECOND)
        assert not self.engine.outbox.queued
        assert len(self.good) + len(self.bad) == self.sent
        assert not self.good & set(self.bad)


@pytest.mark.parametrize("before", [*POOLED, *LANES])
@pytest.mark.parametrize("after", ["deferred", "central-queue", "routing", "jellyfish", "ramsis"])
def test_who_waits_is_served_by_the_next_policy(before: str, after: str) -> None:
    world, rng = World(config_of(before), 2), random.Random(3)
    world.play(rng, 60.0, SECOND)
    # More at once than backends can take: they wait when the policy changes.
    for _ in range(12):
        world.submit(0)
    waited = len(world.engine.outbox.queued)
    assert waited > 0
    world.change(policies_of(config_of(after)))
    assert len(world.engine.outbox.queued) + len(world.bad) >= waited - 2 * 8
    world.play(rng, 60.0, SECOND)
    world.finish()
    assert len(world.bad) <= 2


def test_policies_change_at_random_among_several_applications() -> None:
    rng = random.Random(11)
    for shared in (False, True):
        world = World(config_of("deferred", "deferred", "deferred", shared_backends=shared), 4)
        for _ in range(40):
            world.play(rng, rng.choice((40.0, 200.0, 500.0)), ms(rng.randrange(1, 400)))
            chosen = [rng.choice([*POOLED, *LANES[:4]]) for _ in range(3)]
            world.change(policies_of(config_of(*chosen, shared_backends=rng.random() < 0.5)))
            owners = world.built.ownership.owner
            for backend, state in world.engine.ranks[0].backends.items():
                owner = None if owners[backend] is None else world.engine.sources[owners[backend]]
                assert state.owner is owner
        world.finish()
        assert world.good


def test_who_keeps_its_policy_keeps_its_source_and_its_backends() -> None:
    world = World(config_of("ramsis", "deferred", "central-queue"), 6)
    world.play(random.Random(2), 100.0, SECOND)
    kept = world.engine.sources[0]
    owned = [each for each, owner in world.built.ownership.owner.items() if owner == 0]
    wanted = policies_of(config_of("ramsis", "central-queue", "central-queue"))
    assert world.change(wanted) == ["app1"]
    assert world.engine.sources[0] is kept
    assert [each for each, owner in world.built.ownership.owner.items() if owner == 0] == owned
    assert world.change(wanted) == []
    world.finish()
    assert not world.bad


@pytest.mark.parametrize(("hold", "queued"), [("eager", 0), ("deferred", 1)])
def test_only_options_change(hold: str, queued: int) -> None:
    world = World(config_of("eager"), 1)
    by_router = {"app0": AppliedPolicy("", {}, 1.0)}
    assert world.change(PolicySet("eager", {}, False, by_router)) == []
    assert world.change(PolicySet("deferred", {"hold": hold}, False, by_router)) == ["app0"]
    world.submit(0)
    world.until(world.now_ns + ms(1))
    assert len(world.engine.outbox.queued) == queued
    world.finish()


def test_applications_do_not_come_and_go_that_way() -> None:
    config = config_of("deferred")
    with pytest.raises(ConfigError, match="with a new router"):
        with_policies(config, policies_of(config_of("deferred", "deferred")))


def test_a_policy_that_is_not_there_changes_nothing() -> None:
    world = World(config_of("deferred"), 1)
    source = world.engine.sources[0]
    with pytest.raises(ConfigError, match="unknown"):
        world.change(policies_of(config_of("magic")))
    assert world.engine.sources[0] is source
    assert world.built.config.applications[0].policy == "deferred"


def test_fair_shares_count_those_who_wait() -> None:
    world = World(config_of("deferred", "deferred", fair_shares=True), 2)
    rng = random.Random(5)
    world.play(rng, 900.0, SECOND)
    for policy in ("central-queue", "routing", "deferred"):
        world.change(policies_of(config_of(policy, "deferred")))
        world.play(rng, 900.0, SECOND)
    world.finish()
    for source in world.engine.sources:
        assert source.pool.reserved == pytest.approx(0.0, abs=1e-6)
