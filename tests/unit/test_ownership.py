"""Backends and the policies that need some of their own."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from router_world import LOST, FakeLink, FakeWake, rid

from fermata.deployments.config.deployment import read_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.links.messages import Done, Message, Ready, Run, Submit
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.ownership import Ownership
from fermata.router.policies.sneakpeek.classes import Classes
from fermata.simulator.scenario.scenario import read_scenario


def application(name: str, policy: str = "", share: float = 1.0) -> ApplicationSpec:
    variant = VariantSpec(f"{name}-model", (ms(5), ms(6)))
    return ApplicationSpec(name, ms(50), (variant,), policy=policy, backend_share=share)


def test_backends_are_given_by_share() -> None:
    ownership = Ownership({None: 3.0, 7: 1.0})
    owners = [ownership.take(backend) for backend in range(8)]
    assert owners.count(None) == 6
    assert owners.count(7) == 2


def test_the_successor_of_a_lost_backend_goes_to_whoever_misses_it() -> None:
    ownership = Ownership({None: 1.0, 0: 1.0})
    owners = {backend: ownership.take(backend) for backend in range(4)}
    lost = next(backend for backend, owner in owners.items() if owner == 0)
    ownership.release(lost)
    assert ownership.take(9) == 0


def test_given_in_turn_nobody_has_too_many() -> None:
    ownership = Ownership({None: 3.0, 7: 1.0, 8: 2.0})
    for backend in range(40):
        ownership.take(backend)
        assert not ownership.is_uneven()
    while ownership.owner:
        rich = ownership.richest()
        ownership.release(max(each for each, who in ownership.owner.items() if who == rich))
        assert not ownership.is_uneven()


def test_an_owner_of_a_small_share_without_a_backend_has_too_few() -> None:
    ownership = Ownership({None: 10.0, 1: 1.0})
    assert [ownership.take(backend) for backend in range(3)] == [None, 1, None]
    ownership.release(1)
    assert ownership.is_uneven()
    ownership.release(2)
    assert not ownership.is_uneven()


class Fleet:
    """Four backends of a router, two of them in the pool and two of a policy of their own."""

    def __init__(self) -> None:
        self.now_ns = ms(1000)
        self.soon: list[Callable[[], None]] = []
        applications = (application("pooled"), application("alone", policy="timeout"))
        config = RouterConfig(applications, "deferred", {"hold": "eager"}, lead_ns=0)
        self.router = LiveRouter(config, 3, self.clock, self.soon.append, FakeWake)
        self.ownership = self.router.built.ownership
        self.frontend = FakeLink("frontend", 2)
        self.router.on_up(self.frontend)
        self.links = {number: FakeLink("backend", number) for number in range(10, 14)}
        for link in self.links.values():
            self.router.on_up(link)
            self.hear(link, Ready("emulated", ("pooled-model", "alone-model")))

    def clock(self) -> int:
        return self.now_ns

    def hear(self, link: FakeLink, message: Message) -> None:
        self.router.on_messages(link, [message])
        while self.soon:
            self.soon.pop(0)()

    def those_of(self, owner: int | None) -> list[int]:
        return [number for number, who in self.ownership.owner.items() if who == owner]


@pytest.mark.parametrize("owner", [None, 1])
@pytest.mark.parametrize("drains", [False, True])
def test_an_owner_that_loses_all_is_given_one_of_the_others(
    owner: int | None, drains: bool
) -> None:
    fleet = Fleet()
    for number in fleet.those_of(owner):
        if drains:
            fleet.hear(fleet.links[number], Ready("emulated", ()))
        else:
            fleet.router.on_down(fleet.links[number], LOST)
    assert [len(fleet.those_of(each)) for each in (None, 1)] == [1, 1]
    for number, who in fleet.ownership.owner.items():
        state = fleet.router.engine.backend(number)
        assert (state.owner is None) == (who is None)


def test_a_busy_backend_changes_owners_when_its_batch_has_ended() -> None:
    fleet = Fleet()
    for counter in range(2):
        fleet.hear(fleet.frontend, Submit(rid(counter), "pooled", ms(50), ms(50)))
        fleet.now_ns += 1
        fleet.router.engine.on_time(fleet.now_ns)
        # Whatever is heard next has the router carry out its effects.
        fleet.hear(fleet.frontend, Submit(rid(90 + counter), "nobody", ms(50), ms(50)))
    busy = [each for each in fleet.links if fleet.links[each].take(Run)]
    assert sorted(busy) == sorted(fleet.those_of(None))
    for number in fleet.those_of(1):
        fleet.router.on_down(fleet.links[number], LOST)
    assert fleet.those_of(1) == []
    last = max(busy)
    batch = fleet.router.engine.backend(last).running
    assert batch is not None
    fleet.hear(fleet.links[last], Done(batch.batch_id, ms(5), 0))
    assert fleet.those_of(1) == [last]


def test_a_single_pool_takes_every_backend() -> None:
    built = assemble(RouterConfig((application("a"), application("b"))))
    assert {built.ownership.take(backend) for backend in range(3)} == {None}


def test_each_application_may_have_its_own_policy() -> None:
    applications = (
        application("pooled"),
        application("alone", policy="timeout"),
        application("too", policy="timeout"),
    )
    built = assemble(RouterConfig(applications))
    sources = built.engine.sources
    assert sources[1] is sources[2]
    assert sources[0] is not sources[1]
    assert sorted(str(built.ownership.take(backend)) for backend in range(3)) == ["1", "1", "None"]


def test_an_unknown_policy_of_an_application_is_refused() -> None:
    with pytest.raises(ConfigError, match="policy='lottery' is unknown; one of deferred"):
        assemble(RouterConfig((application("a", policy="lottery"),)))


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="share=0; must be above 0"):
        assemble(RouterConfig((application("a", share=0),)))


def test_a_floor_that_no_variant_reaches_is_refused() -> None:
    variant = VariantSpec("v", (ms(5),), accuracy=0.8)
    one = ApplicationSpec("a", ms(50), (variant,), policy="central-queue", accuracy_floor=0.9)
    with pytest.raises(ConfigError, match=r"accuracy_floor=0.9 is above 0.8, its best variant's"):
        assemble(RouterConfig((one,)))


def test_a_floor_that_no_variants_recalls_reach_is_refused() -> None:
    for accuracy in (0.8, None):
        variant = VariantSpec("v", (ms(5),), accuracy=accuracy)
        one = ApplicationSpec(
            "a",
            ms(50),
            (variant,),
            policy="central-queue",
            accuracy_floor=0.9,
            classes=Classes(recall=((0.7, 0.9),)),
        )
        with pytest.raises(ConfigError, match=r"accuracy_floor=0.9 is above 0.8, its best"):
            assemble(RouterConfig((one,)))


def test_a_floor_above_the_variant_that_is_pinned_is_refused() -> None:
    variants = (
        VariantSpec("small", (ms(5),), accuracy=0.7),
        VariantSpec("large", (ms(9),), accuracy=0.9),
    )
    one = ApplicationSpec("a", ms(50), variants, accuracy_floor=0.8)
    with pytest.raises(ConfigError, match=r"accuracy_floor=0.8 is above 0.7 of 'small', which is"):
        assemble(RouterConfig((one,), "central-queue", {"pinned": True}))
    assemble(RouterConfig((replace(one, serving="large"),), "central-queue", {"pinned": True}))
    assemble(RouterConfig((one,), "central-queue"))


def test_a_floor_above_the_one_variant_that_runs_is_refused() -> None:
    variants = (
        VariantSpec("small", (ms(5),), accuracy=0.7),
        VariantSpec("large", (ms(9),), accuracy=0.9),
    )
    one = ApplicationSpec("a", ms(50), variants, accuracy_floor=0.8)
    with pytest.raises(ConfigError, match=r"'a': accuracy_floor=0.8, but 'small' has 0.7 and pol"):
        assemble(RouterConfig((one,), "deferred"))
    assemble(RouterConfig((replace(one, serving="large"),), "deferred"))
    assemble(RouterConfig((replace(one, policy="central-queue"),), "deferred"))


def test_a_floor_that_nobody_can_judge_is_refused() -> None:
    one = replace(application("a"), accuracy_floor=0.8)
    with pytest.raises(ConfigError, match=r"accuracy_floor=0.8, but 'a-model' has no accuracy"):
        assemble(RouterConfig((one,)))
    known = replace(one, classes=Classes(recall=((0.7, 0.9),)))
    assemble(RouterConfig((known,)))


# Fewer backends than owners


def file_of(*policies: str) -> list[dict[str, object]]:
    """The applications of a file, one for each of these policies."""
    return [
        {
            "name": f"app-{number}",
            "slo_ms": 50,
            "policy": policy,
            "variants": [{"name": f"net-{number}", "latency_ms": [5, 6], "accuracy": 0.8}],
        }
        for number, policy in enumerate(policies)
    ]


def scenario_of(backends: int, *policies: str) -> dict[str, object]:
    return {"backends": backends, "rate_rps": 10, "applications": file_of(*policies)}


def deployment_of(backends: int, *policies: str) -> dict[str, object]:
    return {"backend": {"count": backends}, "applications": file_of(*policies)}


def refuses(backends: int, *policies: str) -> bool:
    """Whether both readers refuse the file; they never differ."""
    refused: list[str] = []
    for where, read, data in (
        ("backends", read_scenario, scenario_of(backends, *policies)),
        ("backend.count", read_config, deployment_of(backends, *policies)),
    ):
        try:
            read(data)  # type: ignore[operator]
        except ConfigError as error:
            message = str(error)
            assert f"{where}={backends}: " in message
            assert "give at least" in message
            assert "\n" not in message
            refused.append(message)
    assert len(refused) in (0, 2)
    return bool(refused)


@pytest.mark.parametrize("policy", ["ramsis", "routing", "single-queue", "jellyfish"])
def test_two_with_lanes_share_one_backend(policy: str) -> None:
    for count, shared in ((1, True), (2, False)):
        assert not refuses(count, policy, policy)
        assert read_scenario(scenario_of(count, policy, policy)).shared_backends == shared
        assert read_config(deployment_of(count, policy, policy)).shares_backends == shared


@pytest.mark.parametrize(
    ("backends", "policies", "refused"),
    [
        (1, ("jellyfish", "sneakpeek", "deferred"), False),
        (2, ("jellyfish", "sneakpeek", "deferred"), False),
        (1, ("routing", "deferred"), False),
        (1, ("deferred", "central-queue", "eager"), False),
        (1, ("timeout", "timeout", "timeout"), False),
        (1, ("timeout", "deferred"), True),
        (2, ("timeout", "deferred"), False),
        (2, ("partitioned", "routing", "deferred"), True),
        (3, ("partitioned", "routing", "deferred"), False),
        (1, ("sneakpeek", "sneakpeek"), False),
        (1, ("sneakpeek", "grouped"), False),
    ],
)
def test_an_owner_that_cannot_share_is_refused(
    backends: int, policies: tuple[str, ...], refused: bool
) -> None:
    assert refuses(backends, *policies) == refused


def test_the_refusal_says_how_many_and_who() -> None:
    rule = (
        r"^backends=1: there are 2 owners of backends, and some share none \(app-0: timeout\); "
        r"give at least 2, or another policy$"
    )
    with pytest.raises(ConfigError, match=rule):
        read_scenario(scenario_of(1, "timeout", "routing"))


def test_the_fleet_at_the_start_counts() -> None:
    scaled = {**scenario_of(1, "timeout", "routing"), "autoscaler": {"maximum": 8}}
    with pytest.raises(ConfigError, match="give at least 2"):
        read_scenario(scaled)
    read_scenario({**scaled, "backends": 2})
    live = {**deployment_of(1, "timeout", "routing"), "autoscaler": {"maximum": 8}}
    with pytest.raises(ConfigError, match="give at least 2"):
        read_config(live)


def test_a_file_without_a_count_is_refused_when_it_is_started() -> None:
    config = read_config({"applications": file_of("timeout", "deferred")})
    with pytest.raises(ConfigError, match=r"backend\.count=1: there are 2 owners"):
        config.check_backends()
    with pytest.raises(ConfigError, match=r"backend\.count=1: there are 2 owners"):
        read_config({"applications": file_of("timeout", "routing")})


@pytest.mark.parametrize("shares", [{None: 3.0, 7: 1.0}, {0: 100.0, 1: 1.0, None: 9.0}])
def test_every_owner_has_a_backend_before_any_has_more(shares: dict[int | None, float]) -> None:
    ownership = Ownership(shares)
    assert {ownership.take(backend) for backend in range(len(shares))} == set(shares)
