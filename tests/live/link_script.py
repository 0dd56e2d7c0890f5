"""One end of a link, in a process of any version: `router` listens, `backend` connects.

It prints the version that the link speaks and what it heard, and ends with the link.
"""

import asyncio
import sys
from typing import Any

import msgspec

from fermata.foundation.units import ms
from fermata.router.links.closing import CloseCode
from fermata.router.links.connecting import connect
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import PROTOCOL, BackendStats, Hello, Payload, Retire, Run
from fermata.router.links.transport import LinkOptions, LinkServer

OPTIONS = LinkOptions(silence_ns=ms(5000), secret=b"of this deployment")
ORDER = Run(7, "v", (1, 2), 3, 4)


class End:
    """Says one thing, and prints what it hears."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.done = asyncio.Event()

    def hello(self) -> Hello:
        return Hello(PROTOCOL, self.role, 0, 1)

    def on_up(self, link: Any) -> None:
        print("speaks", link.peer.protocol, flush=True)
        if self.role == "backend":
            link.send(BackendStats((("v", 1, 2),), 3, non_finite=(("v", 1),)))

    def on_messages(self, link: Any, messages: list[Any]) -> None:
        for message in messages:
            if isinstance(message, BackendStats):
                print("heard", message.loads, message.failures, flush=True)
                # Nobody of the version before has an `inputs`, and each has to read the rest.
                told = {"inputs": (Payload(1, "UINT8", (1,)),)} if PROTOCOL > 8 else {}
                link.send(msgspec.structs.replace(ORDER, **told))
                link.send(Retire("done"))
            elif isinstance(message, Retire):
                link.close(CloseCode.SHUTDOWN, "done")
            else:
                heard = message.batch, message.variant, message.rids, message.plan_ns
                print("heard", heard == (7, "v", (1, 2), 4), flush=True)

    def on_down(self, link: Any, closed: Any) -> None:
        self.done.set()

    def on_refused(self, link: Any, closed: Any) -> None:
        print("refused", flush=True)


async def main(role: str, address: str) -> None:
    end, heartbeat = End(role), HeartbeatThread(OPTIONS.beat_ns)
    if role == "router":
        server = LinkServer(end.hello, end, heartbeat, OPTIONS)
        await server.start("127.0.0.1")
        print(server.address, flush=True)
    else:
        await connect(address, end.hello, end, heartbeat, OPTIONS)
    await end.done.wait()
    if role == "router":
        await server.stop("done")
    heartbeat.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
