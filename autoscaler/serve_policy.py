"""Serve's side of the autoscaler: relays the number of backends that the control plane wants.

Ray pickles this class by value into the Serve controller, and only this module with it. So it has
the standard library and ray alone. The controller calls it ten times a second and must not be
held up. So a thread asks the routers: the leader has the target of the control plane.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

ANSWER_S = 1.0
"""A router that takes longer does not answer."""


class RelayTarget:
    """The policy of the backends' deployment."""

    def __init__(self, routers: Sequence[str], namespace: str, every_s: float = 0.5) -> None:
        """`routers` names one for each seat."""
        self.routers = routers
        self.namespace = namespace
        self.every_s = every_s
        self.target: int | None = None
        self.asking: threading.Thread | None = None

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        if self.asking is None:
            self.asking = threading.Thread(target=self._ask, name="fermata-target", daemon=True)
            self.asking.start()
        return self.decide(context), {}

    def decide(self, context: Any) -> int:
        """The number of replicas for Serve, from the router's last answer."""
        # Before the control plane's first target, and while a router restarts, nothing changes.
        wanted: int = context.target_num_replicas if self.target is None else self.target
        lowest: int = context.capacity_adjusted_min_replicas
        highest: int = context.capacity_adjusted_max_replicas
        return max(lowest, min(highest, wanted))

    def on_answers(self, answers: Sequence[tuple[int, int | None]]) -> None:
        """Take the target of the leader with the latest term, out of (term, target) pairs."""
        self.target = max(answers, key=lambda each: each[0], default=(0, None))[1]

    def _ask(self) -> None:
        import ray

        while True:
            asked: list[Any] = []
            for name in self.routers:
                # There is no router yet, or the cluster shuts down.
                with suppress(Exception):
                    handle: Any = ray.get_actor(name, namespace=self.namespace)
                    asked.append(handle.target.remote())
            answers: list[tuple[int, int | None]] = []
            until_s = time.monotonic() + ANSWER_S
            for each in asked:
                # It is a standby, restarts, or does not run.
                with suppress(Exception):
                    left_s = max(0.0, until_s - time.monotonic())
                    answers.append(ray.get(each, timeout=left_s))
            self.on_answers(answers)
            time.sleep(self.every_s)
