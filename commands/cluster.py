"""The Ray cluster that a command has started for itself: is it still there?"""

from typing import Any

RAYLET, GCS = "raylet", "gcs_server"
NEEDED = {RAYLET, GCS}
"""Others, such as Ray's dashboard, may go."""


class OwnCluster:
    """Ray's processes on this machine, as children of this one; none where Ray runs elsewhere."""

    def __init__(self) -> None:
        # Ray has no public word for it; its own `ray start --block` looks at the same.
        from ray._private import worker

        self.node: Any = worker._global_node

    def lost(self) -> set[str]:
        """Which of the processes that it cannot do without have ended."""
        ended = self.node.dead_processes() if self.node is not None else ()
        return NEEDED & {kind for kind, _ in ended}
