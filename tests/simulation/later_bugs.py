"""Bugs of upgrades, and of inputs and answers that go astray."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from seeded_bugs import Plant

from fermata.deployments.backend.batch_pipeline import PipelineJob
from fermata.deployments.frontend.outcomes import Outcome
from fermata.deployments.frontend.requests.pending_request import PendingRequest
from fermata.fault_simulator.processes import BackendHost, FrontendHost
from fermata.router.links.closing import Closed
from fermata.router.links.messages import PROTOCOLS, Payload
from fermata.router.live.driver import LiveRouter
from fermata.router.live.fleet.peers import LinkPeer


def one_version_alone(what: object) -> None:
    """A backend does not speak the version before its own."""
    if isinstance(what, BackendHost) and what.process.settings.links.speaks == PROTOCOLS:
        process = what.process
        links = replace(process.settings.links, speaks=PROTOCOLS[:1])
        process.settings = replace(process.settings, links=links)
        process.frontends.options = links


def answered_again(what: object) -> None:
    """A frontend does not forget a request that it has answered, now and then."""
    if isinstance(what, FrontendHost):
        table, rng = what.hub.table, what.loop.rng
        end = table._end

        def keep(now_ns: int, entry: PendingRequest, outcome: Outcome) -> None:
            end(now_ns, entry, outcome)
            if rng.random() < 0.05:
                table.entries[entry.rid] = entry

        table._end = keep  # type: ignore[method-assign]


def grant_forgotten(what: object) -> None:
    """A router forgets that a request is in a batch, now and then."""
    if isinstance(what, LiveRouter):
        rids, carry_out = what.fleet.in_flight.rids, what._carry_out

        def forget(now_ns: int) -> None:
            carry_out(now_ns)
            if len(rids) > 2:
                rids.discard(max(rids))

        what._carry_out = forget  # type: ignore[method-assign]


def input_of_another(what: object) -> None:
    """A frontend sends the input of another request, now and then."""
    if isinstance(what, FrontendHost):
        table, rng = what.hub.table, what.loop.rng
        on_payload = table.on_payload
        last: list[Payload] = []

        def mistake(now_ns: int, rid: int, payload: Payload) -> None:
            if last and rng.random() < 0.05:
                payload = msgspec.structs.replace(last[0], rid=rid)
            last[:] = [payload]
            on_payload(now_ns, rid, payload)

        table.on_payload = mistake  # type: ignore[method-assign]


def answers_in_another_order(what: object) -> None:
    """A backend gives the requests of a batch each other's outputs, now and then."""
    if isinstance(what, BackendHost):
        pipeline, rng = what.process.pipeline, what.loop.rng
        finish = pipeline.on_finished

        def finished(
            now_ns: int,
            job: PipelineJob,
            staged_at_ns: int,
            started_at_ns: int,
            run_ns: int,
            outputs: Sequence[Any],
            spoilt: frozenset[int] = frozenset(),
        ) -> None:
            given = outputs[::-1] if rng.random() < 0.1 else outputs
            finish(now_ns, job, staged_at_ns, started_at_ns, run_ns, given, spoilt)

        pipeline.on_finished = finished  # type: ignore[method-assign]


def frontend_forgotten(what: object) -> None:
    """A router does not let go of the requests of a frontend that has gone."""
    if isinstance(what, LiveRouter):
        down = what.on_down

        def half(link: LinkPeer, closed: Closed) -> None:
            if link.peer.role != "frontend":
                down(link, closed)

        what.on_down = half  # type: ignore[method-assign]


LATER: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "one version alone": (one_version_alone, ("older",)),
    "answered again": (answered_again, ()),
    "grant forgotten": (grant_forgotten, ()),
    "input of another": (input_of_another, ()),
    "answers in another order": (answers_in_another_order, ()),
    "frontend forgotten": (frontend_forgotten, ("kill",)),
}
