"""Serve's side of the autoscaler: relays the number of backends that the control plane wants.

Ray pickles this class by value into the Serve controller, and only this module with it: standard
library and ray alone. The controller calls it ten times a second and must not be held up, so a
thread asks the router, where the control plane leaves its target.
"""

import threading
import time
from typing import Any


class RelayTarget:
    """The policy of the backends' deployment."""

    def __init__(self, router: str, namespace: str, every_s: float = 0.5) -> None:
        self.router = router
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
        """What Serve should have, from what the router has said last."""
        # Until the control plane has spoken, and while the router restarts, all stays as it is.
        wanted: int = context.target_num_replicas if self.target is None else self.target
        lowest: int = context.capacity_adjusted_min_replicas
        highest: int = context.capacity_adjusted_max_replicas
        return max(lowest, min(highest, wanted))

    def _ask(self) -> None:
        import ray

        while True:
            try:
                handle: Any = ray.get_actor(self.router, namespace=self.namespace)
                answer: Any = handle.target.remote()
                self.target = ray.get(answer, timeout=5)
            # No router yet, one that restarts, a cluster that shuts down: ask again later.
            except Exception:
                self.target = None
            time.sleep(self.every_s)
