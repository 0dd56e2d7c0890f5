"""The cluster as the control plane needs it. Ray and Serve are one, see
`fermata.deployments.control.ray_cluster`; the world of `fault_simulator` is another."""

from collections.abc import Mapping
from typing import Protocol

from fermata.partitioner.plan import Plan, Problem
from fermata.profiles.profile import Profile
from fermata.router.assembly import RouterConfig
from fermata.router.links.directory import Directory
from fermata.router.live.policy_change import PolicySet
from fermata.router.policies.jellyfish.mapping_problem import Assignment, MappingProblem
from fermata.router.telemetry.snapshot import RouterSnapshot


class Leader(Protocol):
    """The calls to a router that leads. Raises NoAnswerError where it does not answer, or does not
    lead."""

    async def snapshot(self) -> RouterSnapshot: ...
    async def observe(self) -> RouterSnapshot: ...
    async def questions(self, wait_s: float) -> dict[int, MappingProblem]: ...
    async def take_plans(self, plans: dict[int, Assignment]) -> None: ...
    async def place(self, plan: Plan) -> list[str]: ...
    async def withdraw(self, application: str, reason: str) -> None: ...
    async def set_target(self, wanted: list[int]) -> None: ...
    async def set_policies(self, wanted: PolicySet) -> list[str]: ...


class Router(Leader, Protocol):
    """A router that may be anywhere: its `RouterProcess`, asked from afar. Raises GoneError once
    it will never answer again."""

    async def mark(self) -> str: ...
    async def address(self) -> str: ...
    async def leading(self) -> int: ...
    async def directory(self) -> Directory | None: ...
    async def stop(self, reason: str) -> None: ...


class Steered(Protocol):
    """The router that windows and epochs are decided for: the one that leads, or several as one."""

    @property
    def term(self) -> int:
        """Term of the leader; another one knows nothing that this one was told."""

    async def snapshot(self) -> RouterSnapshot: ...
    async def place(self, plan: Plan) -> list[str]: ...
    async def set_target(self, wanted: list[int]) -> None: ...


class Cluster(Protocol):
    """Starts and ends what the control plane wants, and starts again what dies by itself."""

    mark: str
    """The same for one configuration, whatever its policies, run by one version of the code."""

    async def profiles(self) -> tuple[str, Mapping[str, Profile]]:
        """The kind of the backends, and run times of every variant, once they are known."""

    async def find(self, seat: int) -> Router | None:
        """The router of this seat, whoever made it."""

    def create(self, seat: int, plan: RouterConfig) -> Router:
        """A router for this seat, which must be empty."""

    def end(self, router: Router) -> None:
        """Have it killed, and not started again."""

    async def solve(self, problem: Problem, seconds: float) -> Plan:
        """A plan, found in a process of its own: the search would hold up this one's loop for
        seconds."""

    async def device_bytes(self) -> int:
        """Memory of the smallest device among backends that were asked; 0 where none has any."""

    async def router_speed(self) -> float | None:
        """Requests that a router of this code carries with a whole core of a machine here, by a
        short trial in a process of its own; None where there is no answer."""

    async def backends_there(self) -> int:
        """How many run or are on their way."""

    async def backends_here(self) -> int:
        """Those of them that are of this sub-cluster."""

    async def is_followed(self) -> bool:
        """Whether another control plane takes this one's place: the application goes on."""
