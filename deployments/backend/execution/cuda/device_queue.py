"""The one stream on which a GPU runs batches, whatever model they are of.

Batches of two models side by side would each take longer than alone, and by how much nobody knows
before: their run times would hold part of one another's, and the router plans with run times.
"""

import threading
import weakref
from typing import Any

QUEUES: dict[int, "DeviceQueue"] = {}
"""By device."""
OPENING = threading.Lock()
POOL = 32
"""Streams that torch has; it gives them out again in turn."""


class DeviceQueue:
    """Batches of all models run there, one after the other."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.stream = torch.cuda.Stream()
        self.launching = threading.Lock()
        """Held from the first to the last kernel of a batch."""
        self.counting = threading.Lock()
        """Held for a moment: answers do not wait for another batch to be launched."""
        self.flying = 0
        """Batches launched whose answers have not been taken."""
        self.used: weakref.WeakSet[Any] = weakref.WeakSet()
        """Streams beside, for as long as somebody has them."""

    def took_off(self) -> None:
        with self.counting:
            self.flying += 1

    def landed(self) -> None:
        with self.counting:
            self.flying -= 1

    def beside(self) -> Any:
        """Another stream, which nobody else uses as long as there is one.

        A capture on the one that runs batches would take in those of all models. Whatever runs on
        the stream that a graph was captured on writes to the graph's workspace.
        """
        with OPENING:
            others = []
            for _ in range(POOL):
                stream = self.torch.cuda.Stream()
                if stream == self.stream:
                    continue
                if stream not in self.used:
                    break
                others.append(stream)
            else:
                stream = others[0]
            self.used.add(stream)
            return stream


def device_queue(torch: Any) -> DeviceQueue:
    """The queue of the current device, which all runners of this process share."""
    device = torch.cuda.current_device()
    with OPENING:
        if device not in QUEUES:
            QUEUES[device] = DeviceQueue(torch)
        return QUEUES[device]
