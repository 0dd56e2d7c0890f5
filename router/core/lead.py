"""Lead: how long before its start a batch has to be decided on."""


class Lead:
    """Dispatch and fetch of one application's batches: d_ctrl + d_data b.

    Symphony's `delay(bs)` (Fig. 16). The driver sets it; policies and the rank read it. A bid does
    not know its backend yet, so it is planned with one lead that holds on every backend it may
    get. The grant knows the backend, and is exact where its node has a lead of its own.
    """

    __slots__ = ("by_node", "per_request_ns", "start_ns")

    def __init__(self, start_ns: int = 0, per_request_ns: int = 0) -> None:
        self.start_ns = start_ns
        self.per_request_ns = per_request_ns
        self.by_node: dict[str, Lead] = {}
        """Leads of nodes that are nearer or farther than others; empty where all are alike."""

    def ns(self, size: int) -> int:
        """From a decision to the earliest start of a batch of that size."""
        return self.start_ns + self.per_request_ns * size
