"""The control plane of several sub-clusters, with routers that only remember what they are told."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import snapshots
from test_sub_cluster_homes import config

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.policies import mark_of
from fermata.deployments.config.resolve import known_profiles
from fermata.deployments.control.sub_clusters.several_routers import SeveralRouters
from fermata.foundation.errors import GoneError, NoAnswerError
from fermata.partitioner.plan import Plan, Problem
from fermata.partitioner.solve import solve
from fermata.profiles.profile import Profile
from fermata.router.assembly import RouterConfig
from fermata.router.links.directory import Directory
from fermata.router.live.policy_change import PolicySet
from fermata.router.telemetry.snapshot import BackendSnapshot, PlacementSnapshot, RouterSnapshot

GIVEN = config("abc", sub_clusters={"spread": ["b"]})


class FakeRouter:
    """Leads from its start on."""

    def __init__(self, number: int, plan: RouterConfig, mark: str, term: int) -> None:
        self.number = number
        self.plan = plan
        self.own = mark
        self.term = term
        self.known: Directory | None = None
        self.told = 0
        self.policies: list[PolicySet] = []
        self.ended = False
        self.busy = 0.5
        self.placed: tuple[str, ...] = ()
        self.going: set[str] = set()
        self.places: list[tuple[str, ...]] = []
        self.loads = True
        self.rates: Mapping[str, float] = {}
        self.wanted: list[int] = []
        self.least = 0.0
        self.since_s = time.monotonic()
        self.up_ns = 0

    async def mark(self) -> str:
        return self.own

    async def address(self) -> str:
        return f"127.0.0.1:{self.number}"

    async def leading(self) -> int:
        if self.ended:
            raise GoneError("ended")
        return self.term

    async def stop(self, reason: str) -> None:
        self.ended = True

    async def directory(self) -> Directory | None:
        return self.known

    async def set_directory(self, directory: Directory) -> None:
        self.known = directory
        self.told += 1

    async def set_policies(self, wanted: PolicySet) -> list[str]:
        self.policies.append(wanted)
        return []

    async def questions(self, wait_s: float) -> dict[int, Any]:
        return {}

    async def place(self, plan: Plan) -> list[str]:
        self.going |= set(plan.home) - set(self.placed)
        self.placed = tuple(plan.home)
        self.places.append(self.placed)
        return sorted(self.going)

    async def set_target(self, wanted: list[int]) -> None:
        self.wanted = wanted

    async def snapshot(self) -> RouterSnapshot:
        if self.ended:
            raise NoAnswerError("ended")
        on_their_way = sorted(self.going & set(self.placed))
        self.going = self.going if not self.loads else set()
        # Two looks within a millisecond would tell of no time at all.
        now_ns = time.monotonic_ns() // 1_000_000 * 1_000_000
        up_ns = self.up_ns = max(now_ns, self.up_ns + 1_000_000)
        names = [each.name for each in self.plan.applications]
        backend = BackendSnapshot(0, "emulated", names, False, False, False, 1.0)
        return snapshots.router(
            {
                name: snapshots.application(
                    requests=10 + int(self.rates.get(name, 0) * (time.monotonic() - self.since_s))
                )
                for name in names
            },
            placement=PlacementSnapshot(dict.fromkeys(self.placed, 0), {}, on_their_way),
            term=self.term,
            up_ns=up_ns,
            pid=100 + self.number,
            backends={self.number: backend},
            wanted=self.wanted,
            ranks=[
                snapshots.sub_cluster(
                    backends=1,
                    backend_up_ns=up_ns,
                    backend_busy_ns=int(self.busy * up_ns),
                    least=self.least,
                )
            ],
        )

    observe = snapshot


class FakeClusters:
    """Seats of all sub-clusters, whoever looks at them."""

    def __init__(self) -> None:
        self.routers: dict[int, FakeRouter] = {}
        self.made = 0
        self.solved = 0
        self.followed = True

    def of(self, given: DeploymentConfig, number: int) -> "FakeCluster":
        return FakeCluster(self, given, number)


class FakeCluster:
    def __init__(self, all_of: FakeClusters, given: DeploymentConfig, number: int) -> None:
        self.all_of = all_of
        self.number = number
        self.given = given
        self.mark = mark_of(given)

    async def profiles(self) -> tuple[str, Mapping[str, Profile]]:
        return "emulated", known_profiles(self.given)

    async def find(self, seat: int) -> FakeRouter | None:
        return self.all_of.routers.get(self.number) if seat == 0 else None

    def create(self, seat: int, plan: RouterConfig) -> FakeRouter:
        assert seat == 0
        assert self.number not in self.all_of.routers
        self.all_of.made += 1
        made = FakeRouter(self.number, plan, self.mark, 10 + self.all_of.made)
        self.all_of.routers[self.number] = made
        return made

    def end(self, router: FakeRouter) -> None:
        router.ended = True
        del self.all_of.routers[router.number]

    async def solve(self, problem: Problem, seconds: float) -> Plan:
        self.all_of.solved += 1
        return solve(problem, 1.0).plan

    async def backends_there(self) -> int:
        return 4

    async def is_followed(self) -> bool:
        return self.all_of.followed


async def until(ready: Callable[[], bool]) -> None:
    while not ready():
        await asyncio.sleep(0.01)


def play(
    story: Callable[[FakeClusters, SeveralRouters], Awaitable[None]],
    given: DeploymentConfig = GIVEN,
) -> None:
    async def run() -> None:
        clusters = FakeClusters()
        control = SeveralRouters(given, clusters.of)  # type: ignore[arg-type]
        await asyncio.shield(control.starting)
        await story(clusters, control)
        clusters.followed = False
        await control.end()
        assert clusters.routers == {}

    asyncio.run(asyncio.wait_for(run(), 30))


def test_each_sub_cluster_has_a_router_with_its_applications() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        served = {
            number: {each.name for each in router.plan.applications}
            for number, router in clusters.routers.items()
        }
        assert sorted(map(sorted, served.values())) == [["a", "b"], ["b", "c"]]
        assert all(each.plan.loads_all for each in clusters.routers.values())
        await until(lambda: all(each.known for each in clusters.routers.values()))
        known = clusters.routers[0].known
        assert known is not None
        assert set(known.homes_of("b")) == {0, 1}
        assert {number for number in served if "a" in served[number]} == set(known.homes_of("a"))

    play(story)


def test_all_routers_are_told_of_a_new_leader() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        await until(lambda: all(each.known for each in clusters.routers.values()))
        clusters.routers[1].term = 99

        def heard(router: FakeRouter) -> bool:
            return router.known is not None and router.known.homes[1].term == 99

        await until(lambda: all(map(heard, clusters.routers.values())))
        assert control.keeper.directory.homes[1].address == "127.0.0.1:1"

    play(story)


def test_requests_shift_to_the_sub_cluster_with_headroom() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        clusters.routers[0].busy, clusters.routers[1].busy = 0.9, 0.1
        await until(lambda: dict(control.keeper.directory.applications["b"])[1] > 0.55)
        alone = control.keeper.directory.applications["a"]
        assert [share for _, share in alone] == [1.0]

    play(story)


def test_another_control_plane_adopts_routers_and_homes() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        await until(lambda: all(each.known for each in clusters.routers.values()))
        before, first = dict(clusters.routers), control.keeper.directory
        await control.end()
        later = SeveralRouters(GIVEN, clusters.of)  # type: ignore[arg-type]
        await asyncio.shield(later.starting)
        assert (clusters.made, clusters.solved) == (2, 1)
        assert clusters.routers == before
        assert later.homes == control.homes
        assert later.keeper.directory.version > first.version
        clusters.followed = False
        await later.end()

    play(story)


def test_status_tells_of_all_routers_and_leaves_out_who_is_silent() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        told = (await control.status()).to_json()
        assert sorted(told["applications"]) == ["a", "b", "c"]  # type: ignore[arg-type]
        assert told["applications"]["b"]["requests"] == 20  # type: ignore[index, call-overload]
        routers: Any = told["routers"]
        assert [(each["sub_cluster"], each["pid"]) for each in routers] == [(0, 100), (1, 101)]
        assert told["idle_fractions"] == [pytest.approx(0.5)] * 2
        clusters.routers[0].ended = True
        await asyncio.sleep(0.3)
        told = (await control.status()).to_json()
        left: Any = told["routers"]
        assert [each["sub_cluster"] for each in left] == [1]
        clusters.routers[0].ended = False

    play(story)


def test_policies_are_told_to_the_routers_of_their_applications() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        router = GIVEN.router.model_copy(update={"policy": "eager", "policy_options": {}})
        control.set_policies(GIVEN.model_copy(update={"router": router}))
        await until(
            lambda: all(
                each.policies and each.policies[-1].policy == "eager"
                for each in clusters.routers.values()
            )
        )

    play(story)


MOVING = config("abcd", epochs={"every_s": 0.5, "solve_s": 1, "move_s": 1})


def homes(control: SeveralRouters) -> dict[str, int]:
    return {name: at[0][0] for name, at in control.keeper.directory.applications.items()}


def hot_pair(clusters: FakeClusters, control: SeveralRouters) -> set[str]:
    """Have two applications that live together get nearly all requests."""
    found = homes(control)
    hot = {name for name, at in found.items() if at == 0}
    assert len(hot) == 2
    clusters.routers[0].rates = {name: 500.0 if name in hot else 20.0 for name in found}
    return hot


def test_epochs_move_an_application_to_the_router_with_less_to_do() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        first, second = clusters.routers[0], clusters.routers[1]
        await until(lambda: len(first.placed) == len(second.placed) == 2)
        hot, version = hot_pair(clusters, control), control.keeper.directory.version
        await until(lambda: len({homes(control)[name] for name in hot}) == 2)
        assert control.keeper.directory.version > version
        (moved,) = (name for name in hot if homes(control)[name] == 1)
        # Loaded there while it was served here, and here until frontends have heard of it.
        assert moved in first.placed
        assert moved in second.placed
        await until(lambda: moved not in first.placed)
        assert all(len(each) >= 2 for each in (*first.places, *second.places))
        status = (await control.status()).to_json()
        scaling: Any = status["scaling"]
        await until(lambda: control.epochs is not None and not control.epochs.control.is_placing)
        assert scaling["plan"].keys() == set("abcd")
        routers: Any = status["routers"]
        assert moved in routers[1]["applications"]

    play(story, MOVING)


def test_a_move_that_does_not_end_in_time_is_taken_back() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        first, second = clusters.routers[0], clusters.routers[1]
        await until(lambda: len(first.placed) == len(second.placed) == 2)
        await until(lambda: control.epochs is not None and control.epochs.running is not None)
        second.loads = False
        hot = hot_pair(clusters, control)
        await until(lambda: not hot.isdisjoint(second.placed))
        await until(lambda: hot.isdisjoint(second.placed))
        assert {homes(control)[name] for name in hot} == {0}
        assert all(hot <= set(each) for each in first.places)

    play(story, MOVING)


def test_a_new_leader_is_told_what_it_holds() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        second = clusters.routers[1]
        await until(lambda: len(second.placed) == 2)
        own, second.placed = second.placed, ()
        second.term = 99
        await until(lambda: second.placed == own)

    play(story, MOVING)


SCALED = config("abc", autoscaler={"maximum": 8, "window_s": 0.3, "startup_s": 0.1})


def test_each_sub_cluster_is_scaled_by_what_its_own_router_needs() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        first, second = clusters.routers[0], clusters.routers[1]
        first.least, first.busy = 4.0, 0.95
        second.least, second.busy = 1.0, 0.3
        await until(lambda: bool(first.wanted) and first.wanted[0] >= 4)
        assert len(first.wanted) == len(second.wanted) == 1
        # Together they never have more than the deployment may.
        second.least, second.busy = 20.0, 1.0
        await until(lambda: second.wanted[0] >= 4 and first.wanted[0] + second.wanted[0] == 8)
        # A router that comes to lead is told.
        first.term, first.wanted = 99, []
        await until(lambda: bool(first.wanted))
        scaling: Any = (await control.status()).to_json()["scaling"]
        assert len(scaling["advice"]) == 2
        assert all(core.scaling is None for core in control.cores)

    play(story, SCALED)


def test_windows_and_epochs_are_decided_side_by_side() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        await until(lambda: all(each.placed and each.wanted for each in clusters.routers.values()))
        scaling: Any = (await control.status()).to_json()["scaling"]
        assert (len(scaling["advice"]), sorted(scaling["plan"])) == (2, ["a", "b", "c"])

    more = {"window_s": 0.3, "maximum": 8}
    play(story, config("abc", autoscaler=more, epochs={"every_s": 5}))
