"""Applications whose policies have backends of their own, on their way between routers."""

import pytest
from router_world import LOST, TABLE, World, rid

from fermata.autoscaler.readings import (
    ClusterReading,
    PoolReading,
    SubClusterReading,
    window_between,
)
from fermata.deployments.config.deployment import read_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND, ms
from fermata.partitioner.plan import Plan
from fermata.router.assembly import RouterConfig
from fermata.router.core.events import DropReason
from fermata.router.links.directory import Directory, Home
from fermata.router.links.messages import (
    ClientNetworkReport,
    Done,
    Dropped,
    InputSizeAdvice,
    LoadVariant,
    Ready,
    Run,
    Submit,
)
from fermata.router.live.driver import LiveRouter
from fermata.router.live.snapshot import take_snapshot
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.ownership import Ownership

BOTH = ("a-1", "b-1")


def test_backends_of_an_owner_that_has_left_are_spare() -> None:
    ownership = Ownership({None: 1.0, 0: 1.0})
    for backend in range(4):
        ownership.take(backend)
    ownership.serve({None: 1.0})
    assert ownership.is_uneven()
    assert ownership.richest() == 0
    for backend in [each for each, owner in ownership.owner.items() if owner == 0]:
        ownership.release(backend)
        assert ownership.take(backend) is None
    assert not ownership.is_uneven()


def test_one_that_comes_back_keeps_what_it_still_has() -> None:
    ownership = Ownership({None: 1.0, 0: 1.0})
    for backend in range(4):
        ownership.take(backend)
    ownership.serve({None: 1.0})
    ownership.serve({None: 1.0, 0: 1.0})
    assert ownership.held == {None: 2, 0: 2}
    assert not ownership.is_uneven()


def test_before_anybody_has_come_backends_wait_in_the_pool() -> None:
    ownership = Ownership({0: 1.0})
    ownership.serve({})
    assert ownership.take(1) is None
    assert not ownership.is_uneven()
    ownership.serve({0: 1.0})
    assert ownership.richest() is None
    assert ownership.is_uneven()


class Home2:
    """A router of "a", whose policy has backends of its own, and "b" of the pool; both move."""

    def __init__(
        self,
        backends: int = 2,
        policies: tuple[str, str] = ("timeout", "eager"),
        shared: bool = False,
    ) -> None:
        world = self.world = World(policy="eager")
        applications = tuple(
            ApplicationSpec(
                name,
                ms(500),
                (VariantSpec(f"{name}-1", TABLE, accuracy=0.8, input_size=64),),
                policy=policy,
            )
            for name, policy in zip(("a", "b"), policies, strict=True)
        )
        config = RouterConfig(
            applications, "eager", loads_all=True, moves=True, shared_backends=shared
        )
        world.wakes.clear()
        world.router = LiveRouter(config, 4, lambda: world.now_ns, world.soon.append, world._wake)
        world.router.set_directory(Directory(1, (Home(0), Home(1)), {"a": ((0, 1.0),)}))
        world.frontend = world.link("frontend", 2)
        self.links = {number: world.link("backend", number) for number in range(7, 7 + backends)}

    def hold(self, *names: str) -> None:
        for link in self.links.values():
            self.world.hear(link, Ready("emulated", names, empty=not names))

    def place(self, *names: str) -> None:
        self.world.router.place(Plan(dict.fromkeys(names, 0)))
        self.world.settle()

    def owners(self) -> list[str]:
        """Owners of the backends, as the engine has them."""
        engine = self.world.router.engine
        found = [engine.backend(number).owner for number in self.links]
        told = self.world.router.built.ownership.owner
        for number, owner in zip(self.links, found, strict=True):
            mine = told[number]
            assert owner is (None if mine is None else engine.sources[mine])
        return sorted("pool" if each is None else "ab"[each.application] for each in found)

    def ask(self, counter: int, name: str) -> None:
        self.world.hear(self.world.frontend, Submit(rid(counter), name, ms(500), ms(500)))

    def runs(self) -> dict[int, Run]:
        found = {number: link.take(Run) for number, link in self.links.items()}
        return {number: each[0] for number, each in found.items() if each}


def test_it_has_no_backends_before_it_has_come_nor_after_it_has_left() -> None:
    home = Home2()
    home.place("b")
    home.hold()
    home.hold("b-1")
    assert home.owners() == ["pool", "pool"]
    home.place("b", "a")
    assert [link.take(LoadVariant)[-1] for link in home.links.values()] == [LoadVariant("a-1")] * 2
    # The pool serves on all of them until it is loaded everywhere.
    assert home.owners() == ["pool", "pool"]
    home.hold(*BOTH)
    assert home.owners() == ["a", "pool"]
    home.place("b")
    assert home.owners() == ["pool", "pool"]


def test_a_batch_that_runs_ends_before_its_backend_changes_hands() -> None:
    home = Home2()
    home.place("a", "b")
    home.hold(*BOTH)
    home.ask(1, "a")
    home.world.advance(ms(20))
    ((number, run),) = home.runs().items()
    assert run.variant == "a-1"
    home.ask(2, "a")
    home.place("b")
    # What waits is handed back, and what runs ends here.
    dropped = home.world.frontend.take(Dropped)
    assert [(each.rid, each.reason) for each in dropped] == [(rid(2), DropReason.MOVED)]
    assert home.owners() == ["a", "pool"]
    home.world.hear(home.links[number], Done(run.batch, ms(5), 0))
    assert home.owners() == ["pool", "pool"]
    home.ask(3, "b")
    home.ask(4, "b")
    home.world.advance(ms(5))
    assert {each.variant for each in home.runs().values()} == {"b-1"}


def test_one_that_has_come_is_served_on_backends_of_its_own() -> None:
    home = Home2()
    home.place("b")
    home.hold("b-1")
    home.place("b", "a")
    home.hold(*BOTH)
    home.ask(1, "a")
    home.world.advance(ms(20))
    assert [each.variant for each in home.runs().values()] == ["a-1"]


def test_a_new_router_divides_backends_by_what_they_hold() -> None:
    home = Home2(4)
    home.hold("b-1")
    assert home.owners() == ["pool"] * 4
    other = Home2(4)
    other.hold(*BOTH)
    assert other.owners() == ["a", "a", "pool", "pool"]


def test_a_backend_more_takes_no_application_its_own_ones() -> None:
    home = Home2(2)
    home.place("a", "b")
    home.hold(*BOTH)
    late = home.world.link("backend", 20)
    home.links[20] = late
    home.world.hear(late, Ready("emulated", (), empty=True))
    assert sorted(set(home.owners())) == ["a", "pool"]


@pytest.mark.parametrize("policy", ["single-queue", "routing", "jellyfish"])
def test_those_that_share_backends_have_all_once_they_are_alone(policy: str) -> None:
    home = Home2(1, (policy, policy), shared=True)
    home.hold()
    home.place("a", "b")
    home.hold(*BOTH)
    sources = home.world.router.engine.sources
    assert [each.share for each in sources] == [0.5, 0.5]
    home.place("a")
    sources = home.world.router.engine.sources
    assert sources[0].share == 1.0
    assert home.owners() == ["a"]
    home.place("a", "b")
    home.hold(*BOTH)
    assert [each.share for each in home.world.router.engine.sources] == [0.5, 0.5]
    assert home.owners() == ["pool"]


def test_only_pools_of_what_lives_here_are_told() -> None:
    home = Home2()
    home.place("b")
    home.hold("b-1")
    (rank,) = take_snapshot(home.world.router).ranks
    assert [each.applications for each in rank.pools] == [["b"]]


def test_an_old_home_advises_no_clients_any_more() -> None:
    home = Home2(2, ("jellyfish", "eager"))
    home.place("a", "b")
    home.hold(*BOTH)
    world, frontend = home.world, home.world.frontend

    def report() -> None:
        said = ClientNetworkReport("a", 5, ms(500), 10.0, 1e7, 64, 1e5, ms(1))
        world.hear(frontend, said)

    report()
    world.router.clients.take_plans(world.now_ns, {})
    known = world.router.clients.frontends
    assert list(known) == [(0, 5)]
    home.place("b")
    assert not known
    report()
    assert not known
    assert frontend.take(InputSizeAdvice) == []


def pool(name: str, busy_s: float) -> PoolReading:
    return PoolReading((name,), (name,), 1.0, 2, 20 * SECOND, int(busy_s * SECOND), 0.0)


def reading(at_s: int, *pools: PoolReading) -> ClusterReading:
    whole = SubClusterReading(4, at_s * 4 * SECOND, 0, 0.0, pools)
    return ClusterReading(at_s * SECOND, 1, {}, (whole,), Plan())


def test_the_window_of_a_pool_that_has_come_begins_with_it() -> None:
    first = reading(0, pool("a", 1.0), pool("b", 2.0))
    last = reading(10, pool("b", 7.0), pool("c", 9.0))
    parts = window_between(first, last, 0, 4).pools
    assert [each.busy for each in parts] == [0.5, 0.0]


def test_policies_that_share_nothing_need_a_backend_each_in_the_smallest_sub_cluster() -> None:
    variant = {"model": "emulated", "accuracy": 0.8, "latency_ms": [5, 6]}
    applications = [
        {"name": name, "slo_ms": 50, "policy": policy, "variants": [{**variant, "name": name}]}
        for name, policy in (("a", "timeout"), ("b", "partitioned"))
    ]
    document = {
        "applications": applications,
        "sub_clusters": {"count": "auto", "count_max": 2},
        "epochs": {},
        "backend": {"count": 4, "device": "emulated"},
        "autoscaler": {"maximum": 8},
    }
    read_config(document)
    rule = r"backend.count / sub_clusters.count_max=1: there are 2 owners"
    with pytest.raises(ConfigError, match=rule):
        read_config({**document, "backend": {"count": 3, "device": "emulated"}})


def test_those_that_come_to_share_backends_are_told_of_those_there() -> None:
    home = Home2(2, ("single-queue", "eager"), shared=True)
    home.hold()
    home.place("a", "b")
    home.hold(*BOTH)
    home.place("b")
    home.place("a", "b")
    home.hold(*BOTH)
    home.ask(1, "a")
    home.world.advance(ms(20))
    assert [each.variant for each in home.runs().values()] == ["a-1"]


def test_a_shared_backend_may_die_while_a_bid_waits_for_it_alone() -> None:
    home = Home2(2, ("routing", "routing"), shared=True)
    home.hold()
    home.place("a", "b")
    home.hold(*BOTH)
    for counter in range(1, 9):
        home.ask(counter, "ab"[counter % 2])
    home.world.advance(ms(1))
    for number, link in list(home.links.items()):
        home.world.router.on_down(link, LOST)
        late = home.links[number] = home.world.link("backend", number)
        home.world.hear(late, Ready("emulated", BOTH))
    home.world.advance(ms(40))
    assert home.runs()
