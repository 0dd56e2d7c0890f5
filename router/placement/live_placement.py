"""Placement in a live router, by the names that the control plane uses."""

from collections.abc import Iterable, Sequence

from fermata.partitioner.plan import Plan
from fermata.router.assembly import Assembly
from fermata.router.placement.sub_clusters import SubClusters
from fermata.router.telemetry.snapshot import PlacementSnapshot


class LivePlacement:
    """Sub-clusters where there are several. With one, every backend holds and serves all: what it
    has loaded by itself, or what it is told to load here (`RouterConfig.loads_all`). Where
    applications move between routers, backends load those that live here."""

    def __init__(self, built: Assembly) -> None:
        self.numbers = built.applications
        self.wanted: list[int] = []
        """Backends that the control plane wants in each sub-cluster; empty until it has spoken."""
        self.served = built.applications
        """Applications that live here, with their numbers."""
        self.arrived = set[int]()
        """Applications that all backends here have held since they came."""
        self.moves = built.config.moves
        self.sub_clusters: SubClusters | None = None
        if len(built.engine.ranks) > 1 or built.config.loads_all:
            variants = [family.variants for family in built.families]
            self.sub_clusters = SubClusters(built.engine, variants)
        if self.sub_clusters is not None and built.config.loads_all and not self.moves:
            self.sub_clusters.place(0, dict.fromkeys(range(len(built.families)), 0))

    # Backends

    def take(self, backend: int, held: frozenset[int]) -> int:
        """The sub-cluster of a backend that has come up."""
        return 0 if self.sub_clusters is None else self.sub_clusters.take(backend, held)

    def kept(self, backend: int, held: frozenset[int]) -> frozenset[int]:
        """What it says it holds, but for what it was told to unload."""
        return held if self.sub_clusters is None else self.sub_clusters.kept(backend, held)

    def on_held(
        self, now_ns: int, backend: int, held: frozenset[int], failed: frozenset[int]
    ) -> None:
        if self.sub_clusters is not None:
            self.sub_clusters.on_held(now_ns, backend, held, failed)

    def on_gone(self, now_ns: int, backend: int) -> None:
        if self.sub_clusters is not None:
            self.sub_clusters.on_gone(now_ns, backend)

    def on_idle(self, now_ns: int, backend: int) -> None:
        if self.sub_clusters is not None:
            self.sub_clusters.on_idle(now_ns, backend)

    # The control plane

    def place(self, now_ns: int, plan: Plan) -> list[str]:
        """Serve applications by this plan; returns those still on their way. Where applications
        move between routers, those that it does not name live elsewhere."""
        home = {self.numbers[name]: rank for name, rank in plan.home.items()}
        if self.moves:
            self.served = {name: self.numbers[name] for name in plan.home}
        if self.sub_clusters is not None:
            self.sub_clusters.place(now_ns, home, only=self.moves)
        return self.on_their_way()

    def here(self) -> frozenset[int]:
        """Numbers of the applications that backends are for: those that have arrived, or are held
        here already; all that are to come, where none has."""
        placed = self.sub_clusters
        if placed is None:
            return frozenset(self.served.values())
        self.arrived &= placed.placed
        if len(self.arrived) < len(placed.placed):
            self.arrived |= placed.placed - placed.wanting()
        return frozenset(self.arrived or placed.placed)

    def on_their_way(self) -> list[str]:
        """Applications that some backend of their new home has not loaded yet."""
        placed = self.sub_clusters
        if placed is None:
            return []
        going = placed.wanting() if self.moves else placed.going.keys()
        return sorted(name for name, number in self.numbers.items() if number in going)

    @property
    def target(self) -> int | None:
        """Backends that it wants in all, for Serve's autoscaling policy."""
        return sum(self.wanted) if self.wanted else None

    def set_target(self, now_ns: int, wanted: Sequence[int]) -> None:
        """Set the number of backends that each sub-cluster should have."""
        self.wanted = list(wanted)
        if self.sub_clusters is not None:
            self.sub_clusters.weigh(now_ns, wanted)

    def snapshot(self, backends: Iterable[int]) -> PlacementSnapshot:
        """Sub-cluster of each application and backend, and who is on the way to another."""
        placed = self.sub_clusters
        home = {
            name: 0 if placed is None else placed.home[number]
            for name, number in self.served.items()
            if placed is None or number in placed.placed
        }
        where = dict.fromkeys(sorted(backends), 0)
        if placed is not None:
            where |= placed.of_backend
        planned = placed is None or placed.planned
        return PlacementSnapshot(home, where, self.on_their_way(), planned=planned)
