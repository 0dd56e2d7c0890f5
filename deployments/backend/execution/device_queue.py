"""The one stream on which a GPU runs batches, whatever model they are of.

Batches of two models side by side would each take longer than alone, and by how much nobody knows
before: their run times would hold part of one another's, and the router plans with run times.
"""

import threading
from typing import Any

QUEUES: dict[int, "DeviceQueue"] = {}
"""By device."""
OPENING = threading.Lock()


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

    def took_off(self) -> None:
        with self.counting:
            self.flying += 1

    def landed(self) -> None:
        with self.counting:
            self.flying -= 1

    def beside(self) -> Any:
        """Another stream. torch has 32, and gives them out again in turn, this one among them: a
        capture on it would take in the batches of all models."""
        stream = self.torch.cuda.Stream()
        while stream == self.stream:
            stream = self.torch.cuda.Stream()
        return stream


def device_queue(torch: Any) -> DeviceQueue:
    """The queue of the current device, which all runners of this process share."""
    device = torch.cuda.current_device()
    with OPENING:
        if device not in QUEUES:
            QUEUES[device] = DeviceQueue(torch)
        return QUEUES[device]
