"""A live router on links, clock and timer of the test's own; l(b) = 4 + b ms."""

from collections.abc import Callable
from typing import TypeVar

from snapshots import snapshot

from fermata.foundation.units import NEVER, ms
from fermata.router.assembly import RouterConfig
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import (
    PROTOCOL,
    RID_BITS,
    Hello,
    Message,
    Ready,
    Submit,
)
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.telemetry.meters import Meters

Kind = TypeVar("Kind")
LOST = Closed(CloseCode.LOST, "end of file")
LEFT = Closed(CloseCode.SHUTDOWN, "backend shuts down", by_peer=True)
STALE = Closed(CloseCode.STALE, "router term 3 is stale", by_peer=True, term=4)
TABLE = tuple(ms(4 + size) for size in range(1, 17))


class FakeLink:
    def __init__(self, role: str, number: int, node: str = "node") -> None:
        self.peer = Hello(PROTOCOL, role, number, 0, f"host:{number}", node)
        self.said: list[Message] = []
        self.closed: Closed | None = None

    def send(self, message: Message) -> None:
        self.said.append(message)

    def flush(self) -> None:
        pass

    def close(self, code: CloseCode, detail: str) -> None:
        self.closed = Closed(code, detail)

    def take(self, kind: type[Kind]) -> list[Kind]:
        """What of this kind has been said since the last call."""
        taken: list[Kind] = [message for message in self.said if isinstance(message, kind)]
        self.said = [message for message in self.said if not isinstance(message, kind)]
        return taken


class FakeWake:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.at_ns = NEVER

    def set(self, at_ns: int) -> None:
        self.at_ns = at_ns

    def close(self) -> None:
        self.at_ns = NEVER


class World:
    """A router in virtual time."""

    def __init__(
        self,
        policy: str = "deferred",
        hold: str = "deferred",
        make_meters: type[Meters] = Meters,
        accuracy: float | None = None,
        lead_ns: int = 0,
    ) -> None:
        self.now_ns = ms(1000)
        self.soon: list[Callable[[], None]] = []
        options: dict[str, object] = {"hold": hold} if policy == "deferred" else {}
        variant = VariantSpec("v", TABLE, accuracy=accuracy)
        application = ApplicationSpec("cats", ms(20), (variant,))
        config = RouterConfig((application,), policy, options, lead_ns=lead_ns)
        self.wakes: list[FakeWake] = []
        self.router = LiveRouter(
            config,
            3,
            lambda: self.now_ns,
            self.soon.append,
            self._wake,
            make_meters=make_meters,
        )
        self.frontend = self.link("frontend", 2)
        self.backend = self.link("backend", 5)
        self.hear(self.backend, Ready("emulated", ("v",)))

    def _wake(self, call: Callable[[], None]) -> FakeWake:
        self.wakes.append(FakeWake(call))
        return self.wakes[-1]

    def link(self, role: str, number: int) -> FakeLink:
        link = FakeLink(role, number)
        self.router.on_up(link)
        return link

    def hear(self, link: FakeLink, *messages: Message) -> None:
        self.router.on_messages(link, list(messages))
        self.settle()

    def settle(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def submit(
        self, *counters: int, slo_ns: int = ms(20), application: str = "cats", tenant: int = 0
    ) -> None:
        rids = [rid(counter) for counter in counters]
        self.hear(
            self.frontend,
            *(Submit(each, application, slo_ns, slo_ns, tenant=tenant) for each in rids),
        )

    def advance(self, by_ns: int) -> None:
        until_ns = self.now_ns + by_ns
        while self.wakes[0].at_ns <= until_ns:
            self.now_ns = max(self.now_ns, self.wakes[0].at_ns)
            self.wakes[0].at_ns = NEVER
            self.wakes[0].call()
            self.settle()
        self.now_ns = until_ns

    def application(self) -> dict[str, object]:
        found: dict[str, object] = snapshot(self.router)["applications"]["cats"]
        return found


def rid(counter: int, frontend: int = 2) -> int:
    return (frontend << RID_BITS) + counter
