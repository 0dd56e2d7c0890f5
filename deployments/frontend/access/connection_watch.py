"""Limits on gRPC connections: their number, the bytes that they hold, and answers left unread."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fermata.deployments.frontend.access.callers import Caller, CallGate
from fermata.deployments.frontend.access.client_sockets import ClientSocket
from fermata.deployments.frontend.outcomes import RETRY_AFTER_NS, Refusal
from fermata.deployments.specs.frontend import ConnectionLimits
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.foundation.units import ms, seconds


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """Tuning of a watch."""

    held_bytes_min: int = 64 << 10
    """A connection that holds less may be as slow as it likes."""
    misuses_max: int = 50
    """Calls of a connection within `misuses_ns` that may be refused at a limit, or cancelled
    before their message has come."""
    misuses_ns: int = ms(250)
    wrong_max: int = 100
    """Calls of a connection within `misuses_ns` that may be its client's errors."""
    address_share: int = 4
    """All connections of one address together may have so many times as many of both."""
    unread_max: int = 128
    """Answers of a connection that may have waited for `unread_ns_min` to be read."""
    unread_ns_min: int = ms(1000)
    penalty_ns: int = seconds(5)
    """An address may not connect for this long after one did not keep to that, or to memory."""


class Watched:
    """One connection, as it was at the last look."""

    __slots__ = ("held_bytes", "held_since_ns", "received_bytes", "warned")

    def __init__(self, now_ns: int) -> None:
        self.received_bytes = 0
        self.held_bytes = 0
        """Bytes of messages that have not come whole. An estimate: all that came in, less the
        messages that were taken."""
        self.held_since_ns = now_ns
        """When a message was last taken, or nothing was held."""
        self.warned = False
        """Its calls have been refused for the bytes that it holds."""


class ConnectionWatch:
    """Judges connections at each look. Pure: sockets and the time are given."""

    def __init__(
        self, gate: CallGate, held_bytes_max: int, message_bytes_max: int, limits: WatchLimits
    ) -> None:
        """All connections together may hold `held_bytes_max`, those of one address a share."""
        self.gate = gate
        gate.alarm_at = limits.misuses_max + 1
        self.limits = limits
        self.held_bytes_max = held_bytes_max
        share = int(held_bytes_max * gate.limits.held_share)
        self.held_each_max = min(held_bytes_max, max(share, 2 * message_bytes_max))
        self.watched: dict[int, Watched] = {}
        """By inode."""
        self.penalties: dict[str, int] = {}
        """Until when an address may not connect."""
        self.here: set[tuple[str, int]] = set()
        """Addresses and ports of the connections at the last look."""
        self.held_bytes = 0
        self.floods: set[str] = set()
        """Addresses that have lately begun too many calls in vain on all of their connections."""
        self.counted_from_ns = 0
        """Since when misuses are counted."""
        self.cut: Counter[str] = Counter()
        """Connections cut, by reason."""

    def judge(self, now_ns: int, sockets: list[ClientSocket]) -> list[ClientSocket]:
        """Refuse calls that hold too much or come too slowly; return connections to cut."""
        callers = {(each.address, each.port): each for each in self.gate.callers.values()}
        self.penalties = {who: until for who, until in self.penalties.items() if until > now_ns}
        self.floods = self._floods()
        known = self.watched
        self.watched = {each.inode: known.get(each.inode) or Watched(now_ns) for each in sockets}
        verdicts = dict(self._crowded(sockets, known))
        for each in sockets:
            caller = callers.get((each.address, each.port))
            self._measure(now_ns, self.watched[each.inode], each, caller)
            if caller is not None and (reason := self._misuse(now_ns, each, caller)):
                verdicts[each.inode] = reason
        for each, caller in self._greedy(sockets, callers):
            watched = self.watched[each.inode]
            if watched.warned or watched.held_bytes > 2 * self.held_each_max or caller is None:
                verdicts[each.inode] = RefusalReason.MEMORY
                self._punish(now_ns, each.address)
            else:
                self._warn(each, caller)
        for call in self.gate.slow_calls(now_ns):
            call.refuse(_slow(self.gate.limits.receive_ns))
        cut = [each for each in sockets if each.inode in verdicts]
        for each in cut:
            if (caller := callers.get((each.address, each.port))) is not None:
                caller.gone = True
        self._judge_gone(now_ns, sockets)
        self.cut.update(verdicts.values())
        return cut

    def _judge_gone(self, now_ns: int, sockets: list[ClientSocket]) -> None:
        """Hold what connections did before they ended against their address, and forget them."""
        before, self.here = self.here, {(each.address, each.port) for each in sockets}
        here = self.here
        for caller in self.gate.callers.values():
            port = (caller.address, caller.port)
            if port not in here:
                # One that was never seen has come since the look.
                if port in before and not caller.gone:
                    caller.gone = True
                    caller.misuses += caller.waiting
                self._is_flood(now_ns, caller)
        self.gate.forget_gone(lambda each: (each.address, each.port) in here)
        if now_ns - self.counted_from_ns >= self.limits.misuses_ns:
            self.counted_from_ns = now_ns
            for caller in self.gate.callers.values():
                caller.misuses = caller.wrong = 0

    def _is_flood(self, now_ns: int, caller: Caller) -> bool:
        """Whether a connection has begun too many calls in vain; its address gets a penalty."""
        limits = self.limits
        if caller.misuses <= limits.misuses_max and caller.wrong <= limits.wrong_max:
            vain = caller.misuses + caller.wrong > 0
            if not vain or caller.address not in self.floods:
                return False
        self._punish(now_ns, caller.address)
        return True

    def _floods(self) -> set[str]:
        """Addresses whose connections are each within the limits, and too many together."""
        misuses, wrong = Counter[str](), Counter[str]()
        for each in self.gate.callers.values():
            misuses[each.address] += each.misuses
            wrong[each.address] += each.wrong
        limits, share = self.limits, self.limits.address_share
        return {
            address
            for address in misuses
            if misuses[address] > share * limits.misuses_max
            or wrong[address] > share * limits.wrong_max
        } - self.gate.limits.proxies

    def _punish(self, now_ns: int, address: str) -> None:
        # A call whose connection was gone before it was taken has no address.
        if address and address not in self.gate.limits.proxies:
            self.penalties[address] = now_ns + self.limits.penalty_ns

    @property
    def is_pressed(self) -> bool:
        """Whether so much is held that the next look should come soon."""
        return self.held_bytes > self.held_each_max // 4

    def _crowded(
        self, sockets: list[ClientSocket], known: dict[int, Watched]
    ) -> Iterator[tuple[int, str]]:
        """Connections of an address beyond its limit, and new ones of one with a penalty."""
        for each in crowded(sockets, self.gate.limits):
            yield each.inode, RefusalReason.TOO_MANY
        for each in sockets:
            if each.address in self.penalties and each.inode not in known:
                yield each.inode, "flood"

    def _measure(
        self, now_ns: int, watched: Watched, one: ClientSocket, caller: Caller | None
    ) -> None:
        came, watched.received_bytes = (
            one.received_bytes - watched.received_bytes,
            one.received_bytes,
        )
        taken = 0
        if caller is not None:
            taken, caller.taken_bytes = caller.taken_bytes, 0
        watched.held_bytes = max(0, watched.held_bytes + came - taken)
        if caller is None or not (caller.calls or caller.waiting):
            watched.held_bytes = 0
            watched.warned = False
        if taken or watched.held_bytes < self.limits.held_bytes_min:
            watched.held_since_ns = now_ns

    def _misuse(self, now_ns: int, one: ClientSocket, caller: Caller) -> str:
        """Reason to cut a connection for its own sake."""
        limits = self.gate.limits
        if self._is_flood(now_ns, caller):
            return "flood"
        unread = caller.unread(now_ns - self.limits.unread_ns_min)
        if len(unread) > self.limits.unread_max or (
            unread and now_ns - min(unread) > limits.unread_ns
        ):
            return "unread"
        if now_ns - self.watched[one.inode].held_since_ns > limits.receive_ns:
            return "slow"
        return ""

    def _greedy(
        self, sockets: list[ClientSocket], callers: dict[tuple[str, int], Caller]
    ) -> Iterator[tuple[ClientSocket, Caller | None]]:
        """Connections that hold the most, until the rest is within the limits."""
        by_address = Counter[str]()
        for each in sockets:
            by_address[each.address] += self.watched[each.inode].held_bytes
        self.held_bytes = by_address.total()
        exempt, left = self.gate.limits.proxies, self.held_bytes
        if left <= self.held_each_max:
            return
        for each in sorted(sockets, key=lambda one: -self.watched[one.inode].held_bytes):
            above = by_address[each.address] > self.held_each_max and each.address not in exempt
            if above or left > self.held_bytes_max:
                held = self.watched[each.inode].held_bytes
                by_address[each.address] -= held
                left -= held
                yield each, callers.get((each.address, each.port))

    def _warn(self, one: ClientSocket, caller: Caller) -> None:
        """Refuse calls of a connection by name; it is cut if it then still holds as much."""
        self.watched[one.inode].warned = True
        message = (
            f"memory: {one.address} holds {self.watched[one.inode].held_bytes} bytes of messages "
            "that have not come whole: send fewer at a time"
        )
        refusal = Refusal(
            "RESOURCE_EXHAUSTED", RefusalReason.MEMORY, message, retry_after_ns=RETRY_AFTER_NS
        )
        for call in caller.calls:
            call.refuse(refusal)


def crowded(sockets: list[ClientSocket], limits: ConnectionLimits) -> Iterator[ClientSocket]:
    """Connections beyond the limit of their address, the newest of it."""
    counts = Counter[str]()
    for each in sockets:
        counts[each.address] += 1
        if counts[each.address] > limits.per_address_max and each.address not in limits.proxies:
            yield each


def _slow(receive_ns: int) -> Refusal:
    message = f"slow: the message did not come within {receive_ns / 1e9:g} s"
    return Refusal("DEADLINE_EXCEEDED", RefusalReason.SLOW, message)
