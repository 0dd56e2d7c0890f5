"""Sub-clusters of a simulated fleet on several processes: what is played runs beside the rest."""

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType

from benchmarks.fleet_load import Fleet
from benchmarks.fleet_parts import (
    FleetPart,
    FluidSubCluster,
    Order,
    PartReport,
    PlayedSubCluster,
)
from fermata.autoscaler.options import AutoscalerOptions


@dataclass(frozen=True, slots=True)
class Start:
    """Sub-clusters that a process plays."""

    fleet: Fleet
    scaling: AutoscalerOptions
    backends: dict[int, int]
    """By sub-cluster: those that are up at the start."""


def _serve(link: Connection) -> None:
    """Play sub-clusters until the other end is closed."""
    try:
        start: Start = link.recv()
        parts = {
            number: PlayedSubCluster(start.fleet, number, start.scaling, count)
            for number, count in start.backends.items()
        }
        while True:
            orders: dict[int, Order] = link.recv()
            link.send({number: parts[number].step(order) for number, order in orders.items()})
    except (EOFError, KeyboardInterrupt):
        return


class FleetParts:
    """All sub-clusters of a fleet; without processes of their own, all are here."""

    def __init__(self, processes: int) -> None:
        self.here: dict[int, FleetPart] = {}
        self.links: list[Connection] = []
        self.away: list[list[int]] = []
        """By process: its sub-clusters."""
        self.running: list[multiprocessing.context.SpawnProcess] = []
        context = multiprocessing.get_context("spawn")
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.links.append(ours)
            self.running.append(process)

    def __enter__(self) -> "FleetParts":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for link in self.links:
            link.close()
        for process in self.running:
            if error is not None:
                process.terminate()
            process.join()

    def start(self, fleet: Fleet, scaling: AutoscalerOptions, backends: Sequence[int]) -> None:
        """Begin with so many backends in each sub-cluster."""
        played = list(fleet.played)
        self.away = [played[at :: len(self.links)] for at in range(len(self.links))]
        for link, own in zip(self.links, self.away, strict=True):
            link.send(Start(fleet, scaling, {number: backends[number] for number in own}))
        self.here = {}
        for number, count in enumerate(backends):
            if number not in fleet.played:
                self.here[number] = FluidSubCluster(scaling.startup_ns, count)
            elif not self.links:
                self.here[number] = PlayedSubCluster(fleet, number, scaling, count)

    def step(self, orders: Sequence[Order]) -> list[PartReport]:
        """Have all go on; returns how each fares."""
        for link, own in zip(self.links, self.away, strict=True):
            link.send({number: orders[number] for number in own})
        found = {number: part.step(orders[number]) for number, part in self.here.items()}
        for link in self.links:
            found |= link.recv()
        return [found[number] for number in range(len(orders))]
