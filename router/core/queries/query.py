"""A query, and the requests that are parts of it."""

from fermata.router.core.events import Request


class Query:
    """A request of a pipeline, with one deadline for all of its stages."""

    __slots__ = (
        "arrived_at_ns",
        "called",
        "client",
        "deadline_ns",
        "ended",
        "ended_at_ns",
        "frame",
        "missing",
        "open",
        "outcome",
        "parts",
        "pipeline",
        "priority",
        "qid",
        "refused",
        "rounds",
        "tenant",
    )

    def __init__(
        self,
        qid: int,
        pipeline: int,
        arrived_at_ns: int,
        deadline_ns: int,
        client: int = 0,
        priority: int = 0,
        tenant: int = 0,
    ) -> None:
        self.qid = qid
        self.pipeline = pipeline
        self.arrived_at_ns = arrived_at_ns
        self.deadline_ns = deadline_ns
        """An answer after it counts as bad, and nothing is begun that would end after it."""
        self.client = client
        self.priority = priority
        self.tenant = tenant
        """Like the two above, those of all of its requests."""
        self.frame: Request | None = None
        """The query as a frame of its stream, where only the newest of each waits."""
        self.parts: set[int] = set()
        """Its requests that have not ended."""
        self.open: list[int] = []
        """By stage: how many of them are there."""
        self.ended: list[int] = []
        """By stage: requests that have ended with a result."""
        self.called: list[int] = []
        """By stage: calls that its function has made; empty where it has none."""
        self.rounds: list[int] = []
        """By stage: how often it called it with nothing of that open."""
        self.missing = 0
        """Parts that were lost, where the pipeline allows a partial answer."""
        self.outcome = ""
        """How it has ended: `good`, or why not; empty while it has not."""
        self.ended_at_ns = 0
        self.refused = False
        """It was refused at the door, and has cost no backend time."""


class Part:
    """One request of a query."""

    __slots__ = ("made_at_ns", "parent", "query", "ran_at_ns", "rid", "stage")

    def __init__(self, rid: int, query: Query, stage: int, parent: int, made_at_ns: int) -> None:
        self.rid = rid
        self.made_at_ns = made_at_ns
        self.query = query
        self.stage = stage
        self.parent = parent
        """The request whose result it is made of; -1: the query itself, or a join."""
        self.ran_at_ns = 0
        """When its batch ended, where what follows it is told later; 0: it has not."""
