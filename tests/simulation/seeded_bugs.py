"""Bugs to be found: each breaks one process as it starts. A simulator that cannot find them could
not find ours."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from fermata.deployments.backend.batch_pipeline import PipelineJob, ReportDone
from fermata.deployments.control.cluster import Router
from fermata.deployments.control.control_plane import ControlPlaneCore
from fermata.deployments.control.leader_client import LeaderClient
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.fault_simulator.control import ControlHost
from fermata.fault_simulator.processes import BackendHost, FrontendHost, RouterHost
from fermata.fault_simulator.system import NUMBER_BITS
from fermata.foundation.errors import GoneError
from fermata.foundation.units import ms
from fermata.router.core.events import Batch, Blame, Verdict
from fermata.router.core.slot import Slot
from fermata.router.core.source import Source
from fermata.router.leadership.process_ids import claim_process_id
from fermata.router.links.messages import Fetch, Hello, Message, Returned, Submit
from fermata.router.links.router_links import RouterLinks
from fermata.router.links.transport import Link
from fermata.router.live.driver import LiveRouter
from fermata.router.live.fleet.peers import LinkPeer

Plant = Callable[[object], None]


def lost_acknowledgement(what: object) -> None:
    """A backend does not tell the router of one batch in twenty."""
    if isinstance(what, BackendHost):
        pipeline = what.process.pipeline
        take, rng = pipeline.take_effects, what.loop.rng

        def take_effects() -> list[object]:
            return [
                effect
                for effect in take()
                if not isinstance(effect, ReportDone) or rng.random() >= 0.05
            ]

        pipeline.take_effects = take_effects  # type: ignore[method-assign, assignment]


def double_grant(what: object) -> None:
    """A router takes a request that a backend has already for a new one."""
    if isinstance(what, LiveRouter):
        submissions = what.submissions
        submit = submissions.submit

        def forgetful(now_ns: int, link: LinkPeer, message: Submit) -> None:
            held = message.rid in what.fleet.in_flight.rids
            what.fleet.in_flight.rids.discard(message.rid)
            submit(now_ns, link, message)
            if held:
                what.fleet.in_flight.rids.add(message.rid)

        submissions.submit = forgetful  # type: ignore[method-assign, assignment]


def kept_in_the_queue(what: object) -> None:
    """A policy forgets to take one request of each batch out of its queue."""
    if isinstance(what, LiveRouter):
        for source in what.engine.sources:
            source.grant = _keeping(source)  # type: ignore[method-assign]


def _keeping(source: Source) -> Callable[[int, Slot], Batch | None]:
    grant = source.grant

    def keep(now_ns: int, slot: Slot) -> Batch | None:
        batch = grant(now_ns, slot)
        if batch is not None:
            source.on_request(now_ns, batch.requests[0])
        return batch

    return keep


def stale_term(what: object) -> None:
    """A backend obeys whatever router it reaches."""
    if isinstance(what, BackendHost):
        process = what.process
        hello, up = process.hello, process.on_router_up

        def nobody() -> Hello:
            process.pipeline.term = 0
            return hello()

        def greet(link: object) -> None:
            process.pipeline.term = 0
            up(link)  # type: ignore[arg-type]

        process.hello = nobody  # type: ignore[method-assign]
        process.on_router_up = greet  # type: ignore[method-assign]


def leaked_slot(what: object) -> None:
    """A backend keeps the place of a batch whose router has gone."""
    if isinstance(what, BackendHost):
        pipeline = what.process.pipeline
        end = pipeline._end

        def keep(job: PipelineJob, run_ns: int, failed: str) -> None:
            if not job.orphan:
                end(job, run_ns, failed)

        pipeline._end = keep  # type: ignore[method-assign]


def forgotten_answer(what: object) -> None:
    """A frontend does not notice that a request's time has run out."""
    if isinstance(what, FrontendHost):
        what.hub.table.on_time = lambda now_ns: None  # type: ignore[method-assign]


def two_leaders(what: object) -> None:
    """A backend follows whatever router spoke last."""
    if isinstance(what, BackendHost):
        stale_term(what)
        what.loop.world.after(ms(100), lambda: _follow_anybody(what.process.to_router))


def _follow_anybody(links: RouterLinks) -> None:
    heard = links.on_messages

    def listen(link: Link, messages: list[Message]) -> None:
        if link is not links.leader and link.peer.role == "router":
            links._follow(link)
        heard(link, messages)

    def follow(link: Link) -> None:
        links.leader = link
        links.events.on_up(link)

    links.on_messages = listen  # type: ignore[method-assign]
    links._follow = follow  # type: ignore[method-assign]


def shared_number(what: object) -> None:
    """A process is known by a digest of its name, whoever else is."""
    if isinstance(what, BackendHost):
        number = claim_process_id(what.loop.name, lambda _: what.loop.name, NUMBER_BITS)
        what.process.settings = replace(what.process.settings, number=number)


def unnoticed_hang(what: object) -> None:
    """A router does not notice that its loop hangs."""
    if isinstance(what, RouterHost):
        what.hang_up = lambda: None  # type: ignore[method-assign]


def last_word_of_the_lost(what: object) -> None:
    """What a backend gives back has failed for good, although it may run elsewhere by now."""
    if isinstance(what, FrontendHost):
        table = what.hub.table

        def believe(now_ns: int, backend: int, returned: Returned) -> None:
            for rid in returned.rids:
                if rid in table.entries:
                    refusal = Refusal("INTERNAL", RefusalReason.FAILED, "given back")
                    table._end(now_ns, table.entries[rid], refusal)

        table.on_returned = believe  # type: ignore[method-assign]


def memory_given_back_early(what: object) -> None:
    """A frontend takes its memory back as soon as a request has ended."""
    if isinstance(what, FrontendHost):
        table = what.hub.table
        hand_out = table.on_fetch

        def forget(now_ns: int, backend: int, fetch: Fetch) -> None:
            hand_out(now_ns, backend, fetch)
            for rid in fetch.rids:
                if rid in table.entries:
                    table.entries[rid].readers = 0

        table.on_fetch = forget  # type: ignore[method-assign]


def inputs_blamed_on_backends(what: object) -> None:
    """A router counts every error against the backend, whatever happened elsewhere."""
    if isinstance(what, LiveRouter):
        judge = what.supervisor.on_verdict

        def condemn(now_ns: int, verdict: Verdict) -> None:
            judge(now_ns, Verdict(verdict.backend, verdict.application, Blame.BACKEND))

        what.supervisor.on_verdict = condemn  # type: ignore[method-assign]


class HastyControl(ControlPlaneCore):
    """Asks at its start for as many backends as were configured once."""

    async def _start(self) -> None:
        await super()._start()
        if self.scaling is not None:
            await self.seats.set_target([self.config.backend.count])


class BlindSeats(LeaderClient):
    async def keep(self, router: Router) -> None:
        with suppress(GoneError):
            await super().keep(router)


class BlindControl(ControlPlaneCore):
    """Does not notice that somebody has ended its routers."""

    async def _start(self) -> None:
        self.seats = BlindSeats()
        await super()._start()


class FirstSeat(LeaderClient):
    def _leader(self) -> Router:
        return self.routers[0]


class DeafControl(ControlPlaneCore):
    """Speaks to the router of the first seat, whoever leads."""

    async def _start(self) -> None:
        self.seats = FirstSeat()
        await super()._start()


class JealousControl(ControlPlaneCore):
    """Wants no router but those that it has made itself."""

    async def _adopt(self, seat: int, wanted: bool) -> Router | None:
        return await super()._adopt(seat, wanted=False)


def control_plane(kind: type[ControlPlaneCore]) -> Plant:
    def plant(what: object) -> None:
        if isinstance(what, ControlHost):
            what.make = kind

    return plant


PLANTED: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "lost acknowledgement": (lost_acknowledgement, ()),
    "double grant": (double_grant, ("cut", "delay", "flap")),
    "kept in the queue": (kept_in_the_queue, ()),
    "stale term": (stale_term, ("flap", "usurp")),
    "leaked slot": (leaked_slot, ("clock-step", "flap", "kill")),
    "forgotten answer": (forgotten_answer, ()),
    "shared number": (shared_number, ("drain-backend", "kill")),
    "unnoticed hang": (unnoticed_hang, ("loop-hangs",)),
    "last word of the lost": (last_word_of_the_lost, ("fail", "flap")),
    "inputs blamed on backends": (inputs_blamed_on_backends, ("bad-inputs", "burst")),
    "memory given back early": (memory_given_back_early, ("burst",)),
    "two leaders": (two_leaders, ("cut", "part", "stop")),
    "hasty control plane": (control_plane(HastyControl), ("kill",)),
    "blind control plane": (control_plane(BlindControl), ("end-router",)),
    "deaf control plane": (control_plane(DeafControl), ("kill", "stop")),
    "jealous control plane": (control_plane(JealousControl), ("kill", "usurp-control")),
}
"""With the faults that bring each out soonest; none: any."""
