"""The backend time that batches under way will still take."""

from heapq import heappop, heappush


class RunningWork:
    """Keeps the predicted ends of batches; each leaves by itself once it is past, so a backend
    that dies leaves nothing behind."""

    __slots__ = ("ends_ns", "mean_ns", "square_ns2", "sum_ns", "weight")

    def __init__(self, weight: float = 0.003) -> None:
        self.weight = weight
        """Weight of the newest batch in the mean run times."""
        self.ends_ns: list[int] = []
        self.sum_ns = 0
        self.mean_ns = 0.0
        """Moving average of run times."""
        self.square_ns2 = 0.0
        """Mean of their squares."""

    def add(self, end_at_ns: int, run_ns: int) -> None:
        heappush(self.ends_ns, end_at_ns)
        self.sum_ns += end_at_ns
        if self.mean_ns == 0.0:
            self.mean_ns, self.square_ns2 = float(run_ns), float(run_ns) ** 2
        self.mean_ns += self.weight * (run_ns - self.mean_ns)
        self.square_ns2 += self.weight * (float(run_ns) ** 2 - self.square_ns2)

    def count(self, now_ns: int) -> int:
        """Batches that are still to end."""
        ends_ns = self.ends_ns
        while ends_ns and ends_ns[0] <= now_ns:
            self.sum_ns -= heappop(ends_ns)
        return len(ends_ns)

    def left_ns(self, now_ns: int) -> int:
        """Still to run, all batches together."""
        count = self.count(now_ns)
        return self.sum_ns - count * now_ns

    def usual_ns(self, backends: float) -> float:
        """Work left at any time if so many backends are always busy and out of step: each has
        half a run to go, and long runs are met more often."""
        return backends * self.square_ns2 / (2.0 * self.mean_ns) if self.mean_ns > 0.0 else 0.0
