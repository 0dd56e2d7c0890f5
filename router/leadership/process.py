"""A router's process under Ray or in simulation: its links, its role, and the calls to it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

from fermata.foundation.errors import NoAnswerError
from fermata.partitioner.plan import Plan
from fermata.router.leadership.role import LeaderRole, StandbyMonitor
from fermata.router.leadership.terms import TermRecord, Terms
from fermata.router.links.address import join_address
from fermata.router.links.directory import Directory
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.transport import LinkOptions, LinkServer, Resolve
from fermata.router.live.clients.client_mapping import Assignments, MappingProblems
from fermata.router.live.driver import LiveRouter
from fermata.router.live.policy_change import PolicySet
from fermata.router.live.snapshot import Slices, snapshot_in_slices
from fermata.router.telemetry.snapshot import RouterSnapshot

T = TypeVar("T")


async def in_turn(slices: Slices[T]) -> T:
    """Run slices to their end, with everything else that is due between two of them."""
    while True:
        try:
            next(slices)
        except StopIteration as read:
            result: T = read.value
            return result
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Other:
    """The other router of the pair, with which this one takes turns to lead."""

    resolve: Resolve
    second: bool
    """Whether this one waits at first."""
    report: Callable[[str], None] = lambda reason: None
    """Takes the reason why this one took the lead."""


def led(method: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """A method of a leader: a standby has no state to show, and would forget what it is given."""

    @wraps(method)
    async def call(self: "RouterProcess", *given: Any) -> T:
        if not await self.leading():
            raise NoAnswerError("this router is the standby: ask the other one")
        return await method(self, *given)

    return call


class RouterProcess:
    """Runs a `LiveRouter` on the event loop of its first caller."""

    live: LiveRouter
    role: LeaderRole
    server: LinkServer
    monitor: StandbyMonitor

    def __init__(
        self,
        make_live: Callable[[], LiveRouter],
        heartbeat: HeartbeatThread,
        options: LinkOptions,
        host: str,
        port: int = 0,
        mark: str = "",
        other: Other | None = None,
        record: TermRecord | None = None,
        cpu_clock: Callable[[], int] = lambda: 0,
    ) -> None:
        """`mark` tells a later owner whether this router is of its own making; `record` is the
        cluster's own of terms; `cpu_clock` tells the CPU time of the calling thread."""
        self.cpu_clock = cpu_clock
        self.make_live = make_live
        self.heartbeat = heartbeat
        self.options = options
        self.host = host
        self.port = port
        self.of = mark
        self.other = other
        self.terms = Terms(record, lambda: self.live.term)
        self.starting: asyncio.Task[str] | None = None

    async def address(self) -> str:
        """host:port for links; the router listens from the first call on."""
        if self.starting is None:
            self.starting = asyncio.get_running_loop().create_task(self._start())
        return await asyncio.shield(self.starting)

    async def _start(self) -> str:
        self.live = self.make_live()
        self.role = LeaderRole(self.live, leads=self.other is None)
        self.server = LinkServer(self.role.hello, self.role, self.heartbeat, self.options)
        port = await self.server.start(self.host, self.port)
        if self.other is not None:
            other = self.other
            self.monitor = StandbyMonitor(
                self.role,
                other.resolve,
                not other.second,
                self.heartbeat,
                self.options,
                other.report,
                self.terms.note,
            )
            self.monitor.start()
        return join_address(self.host, port)

    async def mark(self) -> str:
        return self.of

    async def leading(self) -> int:
        """The term in which it leads; 0 while it waits."""
        await self.address()
        return self.live.term if self.role.leads else 0

    @led
    async def snapshot(self) -> RouterSnapshot:
        """Counters and signals."""
        standby, refused = bool(self.role.standbys), self.server.lobby.refused
        tasks, cpu_ns = len(asyncio.all_tasks()), self.cpu_clock()
        taken = await in_turn(snapshot_in_slices(self.live, standby, tasks, refused))
        requests = sum(each.requests for each in taken.applications.values())
        ranks = taken.ranks
        if len(ranks) == 1:
            ranks = [replace(ranks[0], router_cpu_ns=cpu_ns, router_requests=requests)]
        return replace(taken, ranks=ranks)

    @led
    async def observe(self) -> RouterSnapshot:
        """Counters and signals, with the batches of the last seconds on each backend."""
        return await in_turn(snapshot_in_slices(self.live, with_batches=True))

    @led
    async def questions(self, wait_s: float) -> MappingProblems:
        """Problems of client mapping, once one is due or what was decided last holds no more,
        within so many seconds; see `ClientMapping`."""
        clients, urgent = self.live.clients, asyncio.Event()
        clients.on_urgent = urgent.set
        due_in_s = (clients.due_at_ns() - self.live.clock()) / 1e9
        if not clients.urgent and due_in_s > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(urgent.wait(), min(wait_s, due_in_s))
        return clients.questions(self.live.clock())

    @led
    async def take_plans(self, plans: Assignments) -> None:
        self.live.take_plans(plans)

    @led
    async def place(self, plan: Plan) -> list[str]:
        """Serve applications by this plan; returns those still on their way."""
        return self.live.place(plan)

    @led
    async def withdraw(self, application: str, reason: str) -> None:
        """Serve an application no more; see `LiveRouter.withdraw`."""
        self.live.withdraw(application, reason)

    @led
    async def set_directory(self, directory: Directory) -> None:
        """Tell frontends where applications live, and remember it for the next control plane."""
        self.live.set_directory(directory)

    @led
    async def directory(self) -> Directory | None:
        """The homes of applications; None until a control plane has told them."""
        return self.live.notifier.directory

    @led
    async def set_policies(self, wanted: PolicySet) -> list[str]:
        """Serve by these policies; returns the applications that are served otherwise."""
        return self.live.set_policies(wanted)

    @led
    async def set_target(self, wanted: list[int]) -> None:
        """Set the number of backends that each sub-cluster should have."""
        self.live.set_target(wanted)

    @led
    async def target(self) -> tuple[int, int | None]:
        """Its term, and how many backends the control plane last wanted; None until it has."""
        return self.live.term, self.live.fleet.placement.target

    async def stop(self, reason: str = "router shuts down") -> None:
        """Close every link; the creator of the process then ends it."""
        if self.starting is None:
            return
        await self.starting
        if self.other is not None:
            await self.monitor.stop(reason)
        await self.server.stop(reason)
        self.terms.stop()
        self.live.stop()
        self.heartbeat.stop()
