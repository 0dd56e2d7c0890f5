"""Sub-clusters whose routers only remember what they are told, for their control plane."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import snapshots
from test_sub_cluster_homes import config

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.policies import mark_of
from fermata.deployments.config.resolve import known_profiles
from fermata.deployments.control.sub_clusters.several_routers import SeveralRouters
from fermata.foundation.errors import GoneError, NoAnswerError
from fermata.partitioner.plan import Plan, Problem
from fermata.partitioner.solver.solve import solve
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
        self.silent = False
        self.backends = 1
        self.busy = 0.5
        self.cpu = 0.0
        """Share of a core that it takes."""
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
        if self.silent:
            raise NoAnswerError("no answer")
        self.wanted = wanted

    async def snapshot(self) -> RouterSnapshot:
        if self.ended or self.silent:
            raise NoAnswerError("no answer")
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
                    backends=self.backends,
                    backend_up_ns=up_ns,
                    backend_busy_ns=int(self.busy * up_ns),
                    least=self.least,
                    router_cpu_ns=int(self.cpu * up_ns),
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
        self.tried = 0
        self.speed_rps: float | None = None
        self.device_bytes: list[int] = []
        """By sub-cluster; empty: none has memory of its own."""
        self.problems: list[Problem] = []
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
        self.all_of.problems.append(problem)
        return solve(problem, 1.0).plan

    async def device_bytes(self) -> int:
        told = self.all_of.device_bytes
        return told[self.number] if told else 0

    async def router_speed(self) -> float | None:
        self.all_of.tried += 1
        return self.all_of.speed_rps

    async def backends_there(self) -> int:
        return 4

    async def backends_here(self) -> int:
        return 2

    async def is_followed(self) -> bool:
        return self.all_of.followed


async def until(ready: Callable[[], bool]) -> None:
    while not ready():
        await asyncio.sleep(0.01)


def play(
    story: Callable[[FakeClusters, SeveralRouters], Awaitable[None]],
    given: DeploymentConfig = GIVEN,
    device_bytes: Sequence[int] = (),
) -> None:
    async def run() -> None:
        clusters = FakeClusters()
        clusters.device_bytes = list(device_bytes)
        control = SeveralRouters(given, clusters.of)  # type: ignore[arg-type]
        await asyncio.shield(control.starting)
        await story(clusters, control)
        clusters.followed = False
        await control.end()
        assert clusters.routers == {}

    asyncio.run(asyncio.wait_for(run(), 30))
