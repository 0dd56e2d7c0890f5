"""gRPC calls that are open here, by the connection and the address that they came from."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from fermata.deployments.frontend.outcomes import RETRY_AFTER_NS, Refusal
from fermata.deployments.specs.frontend import ConnectionLimits
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.foundation.units import NEVER
from fermata.router.links.heartbeat import Clock

MAPPED = "::ffff:"
"""Prefix of IPv4 addresses on a socket for both."""
HEALTH_MAX = 32
"""Health checks of one connection whose answers have not left."""


class Caller:
    """One connection, as far as its calls tell."""

    __slots__ = (
        "address",
        "calls",
        "gone",
        "health",
        "misuses",
        "port",
        "taken_bytes",
        "waiting",
        "wrong",
    )

    def __init__(self, peer: str) -> None:
        self.address, self.port = address_of(peer)
        self.calls: dict[OpenCall, None] = {}
        """Open ones that have begun, in the order of their coming."""
        self.waiting = 0
        """Calls that have not begun: their address's turn has not come."""
        self.gone = False
        """The connection has ended. Nobody waits for calls that have not begun."""
        self.taken_bytes = 0
        """Size of the messages that were taken from gRPC, with an allowance for their frames."""
        self.health = 0
        """Open calls that are health checks."""
        self.misuses = 0
        """Calls of the last moment that were refused at a limit, or that the client cancelled
        before their message had come."""
        self.wrong = 0
        """Calls of the last moment that were refused for what their client had sent."""

    def unread(self, until_ns: int) -> list[int]:
        """When answers were given that have not left since `until_ns`."""
        return [call.answered_at_ns for call in self.calls if call.answered_at_ns <= until_ns]


class OpenCall:
    """One call from its headers until its answer has left. Hot: one for each unary call."""

    __slots__ = ("answered_at_ns", "caller", "health", "refusal", "since_ns", "task")

    def __init__(self, caller: Caller, since_ns: int, health: bool) -> None:
        self.caller = caller
        self.since_ns = since_ns
        """When its message began to be waited for; NEVER once that has come."""
        self.answered_at_ns = NEVER
        self.health = health
        self.refusal: Refusal | None = None
        """Set with a cancellation of ours, whose client gets this answer."""
        self.task: asyncio.Task[Any] | None = None
        """Task to cancel for a refusal; None where it cannot be refused any more."""

    def refuse(self, refusal: Refusal) -> None:
        """End a call that still waits for its message."""
        if self.task is not None and self.refusal is None and self.since_ns != NEVER:
            self.refusal = refusal
            self.task.cancel()


class CallGate:
    """Counts open calls against the limits."""

    def __init__(self, limits: ConnectionLimits, total_max: int, clock: Clock) -> None:
        self.limits = limits
        self.total_max = total_max
        self.clock = clock
        self.callers: dict[str, Caller] = {}
        """By the peer, as gRPC writes it."""
        self.total = 0
        self.addresses: Counter[str] = Counter()
        self.refused = 0
        """Calls refused at a limit."""
        self.alarm_at = NEVER
        """So many calls in vain of one connection set `alarm`, and again as many."""
        self.alarm = asyncio.Event()
        """Set where the connections should be looked at without delay."""

    def enter(self, peer: str, health: bool = False) -> OpenCall | Refusal:
        """Admit a call of a peer. Health checks are limited by their address alone, so that the
        calls of others cannot crowd them out."""
        caller = self._caller(peer)
        refusal = self._refusal(caller, health)
        if refusal is not None:
            self.refused += 1
            self._count(caller, misuses=1)
            return refusal
        call = OpenCall(caller, self.clock(), health)
        caller.calls[call] = None
        caller.health += health
        self.addresses[caller.address] += 1
        self.total += not health
        return call

    def line_up(self, peer: str) -> Caller | None:
        """Count a call of a peer that waits for its turn; None at a limit, where it would be
        refused."""
        caller = self._caller(peer)
        if self._refusal(caller, False) is not None:
            return None
        caller.waiting += 1
        self.addresses[caller.address] += 1
        self.total += 1
        return caller

    def step_up(self, caller: Caller) -> bool:
        """End the wait of a call whose turn has come; returns whether it may begin."""
        caller.waiting -= 1
        self.total -= 1
        self._forget_one(caller.address)
        return not caller.gone

    def _caller(self, peer: str) -> Caller:
        caller = self.callers.get(peer)
        if caller is None:
            caller = self.callers[peer] = Caller(peer)
        return caller

    def _forget_one(self, address: str) -> None:
        self.addresses[address] -= 1
        if not self.addresses[address]:
            del self.addresses[address]

    def _refusal(self, caller: Caller, health: bool) -> Refusal | None:
        limits, address = self.limits, caller.address
        if health and caller.health >= HEALTH_MAX:
            message = f"too-many: {HEALTH_MAX} health checks are open here: read their answers"
        elif self.total >= self.total_max and not health:
            message = f"too-many: {self.total_max} calls are open here: try again later"
        elif (
            self.addresses[address] >= limits.calls_per_address_max
            and address not in limits.proxies
        ):
            most = limits.calls_per_address_max
            message = f"too-many: {address} has {most} calls open here: wait for answers"
        else:
            return None
        return Refusal(
            "RESOURCE_EXHAUSTED", RefusalReason.TOO_MANY, message, retry_after_ns=RETRY_AFTER_NS
        )

    def leave(self, call: OpenCall, wrong: bool = False) -> None:
        """The call has ended, and its answer has left; `wrong`: its client's error."""
        caller = call.caller
        del caller.calls[call]
        misused = call.since_ns != NEVER and call.refusal is None
        if misused or wrong:
            self._count(caller, misused, wrong)
        caller.health -= call.health
        self.total -= not call.health
        self._forget_one(caller.address)

    def _count(self, caller: Caller, misuses: int = 0, wrong: int = 0) -> None:
        """Count a call that came to nothing, by a fault of its client."""
        caller.misuses += misuses
        caller.wrong += wrong
        if (caller.misuses + caller.wrong) % self.alarm_at == 0:
            self.alarm.set()

    def forget_gone(self, is_open: Callable[[Caller], bool]) -> None:
        """Forget connections that have ended; `is_open` says which have not."""
        gone = [
            peer
            for peer, each in self.callers.items()
            if not each.calls and not each.waiting and not is_open(each)
        ]
        for peer in gone:
            del self.callers[peer]

    def slow_calls(self, now_ns: int) -> Iterator[OpenCall]:
        """Calls whose message has not come in time."""
        due_ns = now_ns - self.limits.receive_ns
        for caller in self.callers.values():
            for call in caller.calls:
                if call.since_ns <= due_ns:
                    yield call


def address_of(peer: str) -> tuple[str, int]:
    """(address, port) of a peer in gRPC's writing, such as `ipv4:10.0.0.1:4000`."""
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return host.strip("[]").removeprefix(MAPPED), int(port) if port.isdecimal() else 0
