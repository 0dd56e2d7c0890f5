"""More bugs to be found: of backends that fail, are gone, or are cut off for good."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from seeded_bugs import Plant

from fermata.deployments.frontend.outcomes import Outcome
from fermata.deployments.frontend.requests.pending_request import PendingRequest
from fermata.fault_simulator.processes import BackendHost, FrontendHost
from fermata.foundation.units import seconds
from fermata.router.core.events import Apart, Batch, Request
from fermata.router.core.retries import Retries
from fermata.router.core.source import NO_LANES, Source
from fermata.router.live.driver import LiveRouter


def partition_unnoticed(what: object) -> None:
    """A backend tells nobody which frontends it cannot reach."""
    if isinstance(what, BackendHost):
        what.process.on_reach = lambda unreachable: None  # type: ignore[method-assign]


def apart_is_nowhere(what: object) -> None:
    """Requests that are kept apart are never offered to a backend."""
    if isinstance(what, LiveRouter):
        for rank in what.engine.ranks:
            rank.retries.add_apart = _forgetting(rank.retries)  # type: ignore[method-assign]


def _forgetting(retries: Retries) -> Callable[[Source | None, Request, Apart], Sequence[int]]:
    add = retries.add_apart

    def forget(owner: Source | None, request: Request, apart: Apart) -> Sequence[int]:
        apart.avoid.update(range(1 << 6))
        add(owner, request, apart)
        return NO_LANES

    return forget


def hung_in_company(what: object) -> None:
    """Requests that were in a batch that hung are tried again, with others."""
    if isinstance(what, LiveRouter):
        engine = what.engine
        down, again = engine.on_backend_down, engine._run_again

        def forget(now_ns: int, backend: int, hung: bool = False) -> None:
            if hung:
                engine._run_again = lambda now_ns, request, _: again(now_ns, request, None)  # type: ignore[method-assign]
            down(now_ns, backend)
            engine._run_again = again  # type: ignore[method-assign]

        engine.on_backend_down = forget  # type: ignore[method-assign]


def hung_alone(what: object) -> None:
    """Requests that were in a batch that hung are tried again, each alone."""
    if isinstance(what, LiveRouter):
        engine = what.engine
        down = engine.on_backend_down
        engine.on_backend_down = lambda now_ns, backend, hung=False: down(now_ns, backend)  # type: ignore[method-assign]


def want_called_overload(what: object) -> None:
    """Requests are refused as overload while there is no backend."""
    if isinstance(what, LiveRouter):
        what.engine.outbox.unserved = lambda request: False


def ejected_for_ever(what: object) -> None:
    """A backend that was ejected is never given back."""
    if isinstance(what, LiveRouter):
        outliers = what.supervisor.outliers
        outliers.rules = replace(outliers.rules, eject_ns=seconds(900), eject_ns_max=seconds(900))


def quarantined_for_ever(what: object) -> None:
    """A model is never released from quarantine."""
    if isinstance(what, LiveRouter):
        what.fleet.availability.release = lambda name: False  # type: ignore[method-assign]


def nobody_told_of_the_fleet(what: object) -> None:
    """Frontends do not hear that backends have come or gone."""
    if isinstance(what, LiveRouter):
        what.notifier.publish_fleet = lambda: None  # type: ignore[method-assign]


def in_flight_for_ever(what: object) -> None:
    """A router keeps one request of each batch that was lost."""
    if isinstance(what, LiveRouter):
        in_flight, lost = what.fleet.in_flight, what.fleet.in_flight.on_lost

        def keep(batch: Batch) -> None:
            lost(batch)
            in_flight.rids.add(batch.requests[0].rid)

        in_flight.on_lost = keep  # type: ignore[method-assign]


def memory_uncounted(what: object) -> None:
    """A frontend does not count all the memory back that requests had."""
    if isinstance(what, FrontendHost):
        table = what.hub.table
        end = table._end

        def forget(now_ns: int, entry: PendingRequest, outcome: Outcome) -> None:
            end(now_ns, entry, outcome)
            if what.loop.rng.random() < 0.05:
                table.payload_bytes += entry.size_bytes

        table._end = forget  # type: ignore[method-assign]


MORE: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "want called overload": (want_called_overload, ("no-backend",)),
    "ejected for ever": (ejected_for_ever, ("fail-at-once",)),
    "quarantined for ever": (quarantined_for_ever, ("poison",)),
    "nobody told of the fleet": (nobody_told_of_the_fleet, ("kill",)),
    "in flight for ever": (in_flight_for_ever, ("kill", "hang")),
    "hung in company": (hung_in_company, ("hanging-input",)),
    "hung alone": (hung_alone, ("hanging-input",)),
    "memory uncounted": (memory_uncounted, ()),
}
LASTING: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "partition unnoticed": (partition_unnoticed, ("part", "part-one-way")),
    "apart is nowhere": (apart_is_nowhere, ("part",)),
}
"""Those that show where faults never end."""
