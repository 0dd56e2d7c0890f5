"""A backend as it is offered to a policy: when a batch may start there, and what it would take."""

from fermata.router.core.costs import Costs


class Slot:
    """The backend offered in a grant."""

    __slots__ = (
        "backend",
        "costs",
        "factor",
        "kind",
        "per_request_ns",
        "ready_at_ns",
        "resident",
        "room",
        "start_at_ns",
    )

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.backend = 0
        self.kind = 0
        self.start_at_ns = 0
        """When a batch of one starts."""
        self.ready_at_ns = 0
        """When the input of one request is there, and how much later for each more."""
        self.per_request_ns = 0
        self.factor = 1.0
        self.resident: frozenset[int] | None = None
        """Variants that run without a swap-in; None when all of the plan's do."""
        self.room: dict[int, int] | None = None
        """The largest batch of variants for which memory is short; None when it is not."""

    def offer(
        self, backend: int, kind: int, start_at_ns: int, resident: frozenset[int] | None
    ) -> None:
        self.backend = backend
        self.kind = kind
        self.start_at_ns = start_at_ns
        self.resident = resident
        self.factor = self.costs.backend_factor.get(backend, 1.0)
        self.room = self.costs.backend_room.get(backend)
        self.per_request_ns = 0

    def fetch(self, ready_at_ns: int, per_request_ns: int) -> None:
        """Have a batch of one start no sooner than then, and others later for each more."""
        self.ready_at_ns = ready_at_ns
        self.per_request_ns = per_request_ns

    def wait_ns(self, size: int) -> int:
        """How much later than `start_at_ns` a batch of that size has all its inputs."""
        if self.per_request_ns == 0:
            return 0
        ready_at_ns = self.ready_at_ns + self.per_request_ns * (size - 1)
        return max(0, ready_at_ns - self.start_at_ns)

    def runs(self, variant: int) -> bool:
        """Whether the variant is there, or can be swapped in."""
        return self.resident is None or variant in self.resident or variant in self.costs.swap_in_ns

    def plain(self, variant: int) -> bool:
        """Whether the variant's table for kind 0 holds here as it stands."""
        if self.kind != 0 or self.factor != 1.0 or self.room is not None or self.per_request_ns:
            return False
        return self.swap_in_ns(variant) == 0

    def size_max(self, variant: int) -> int:
        """The largest batch that this backend has room for."""
        size_max = self.costs.of(variant, self.kind).size_max
        if self.room is None:
            return size_max
        return min(size_max, self.room.get(variant, size_max))

    def swap_in_ns(self, variant: int) -> int:
        if self.resident is None or variant in self.resident:
            return 0
        return self.costs.swap_in_ns.get(variant, 0)

    def plan_ns(self, variant: int, size: int) -> int:
        """Planned time from `start_at_ns` to the end: margin, learnt factor and swap-in included,
        and the wait for more inputs than one."""
        plan_ns = self.costs.of(variant, self.kind).plan_ns[size]
        if self.factor != 1.0:
            plan_ns = int(plan_ns * self.factor)
        plan_ns += self.swap_in_ns(variant)
        return plan_ns + self.wait_ns(size) if self.per_request_ns else plan_ns

    def expect_ns(self, variant: int, size: int) -> int:
        """Expected run time: what such batches have usually taken, and the swap-in."""
        expect_ns = self.costs.of(variant, self.kind).expect_ns(size)
        if self.factor != 1.0:
            expect_ns = int(expect_ns * self.factor)
        return expect_ns + self.swap_in_ns(variant)

    def size_that_fits(self, variant: int, budget_ns: int) -> int:
        """The largest batch planned to run within the budget; 0 if not even one request fits."""
        cost = self.costs.of(variant, self.kind)
        budget_ns -= self.swap_in_ns(variant)
        low, high = 0, self.size_max(variant)
        while low < high:
            middle = (low + high + 1) // 2
            wait_ns = self.wait_ns(middle) if self.per_request_ns else 0
            if int(cost.plan_ns[middle] * self.factor) + wait_ns <= budget_ns:
                low = middle
            else:
                high = middle - 1
        return low
