"""Ways for bytes past a transport's queue, so that the heartbeat thread can write too."""

import asyncio
import os
from typing import Protocol


class Wire(Protocol):
    """A way past the transport's queue, for any thread that holds the link's lock."""

    def push(self, data: bytes) -> int:
        """Send these bytes; returns how many of them were taken."""

    def close(self) -> None: ...


class SocketWire:
    """The socket itself, by a descriptor that stays ours whatever the transport does."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self.fd = os.dup(transport.get_extra_info("socket").fileno())

    def push(self, data: bytes) -> int:
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            # The transport will see the same error, or an end of file, and end the link.
            return len(data)

    def close(self) -> None:
        os.close(self.fd)
