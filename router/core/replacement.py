"""Sources of other policies take the place of those that serve: who waits keeps waiting, and what
runs on backends ends there."""

from collections.abc import Mapping
from dataclasses import dataclass

from fermata.router.core.engine import Engine
from fermata.router.core.events import Batch, DropReason, Request, Retry
from fermata.router.core.fairness.admission import Admission
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.rank import RankThread
from fermata.router.core.source import Source


@dataclass(frozen=True, slots=True)
class Successor:
    """The source that serves an application from now on, with what belongs to it."""

    source: Source
    admission: Admission | None
    runs: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class _Homeless:
    """A backend that is to have another owner."""

    rank: RankThread
    state: BackendState
    resident: frozenset[int] | None


def replace_sources(
    engine: Engine,
    now_ns: int,
    successors: Mapping[int, Successor],
    owners: Mapping[int, int | None],
) -> None:
    """Serve these applications from other sources. A source that serves several of them is replaced
    for all. `owners` are those of backends from now on; None is the pool."""
    assert not engine.outbox.effects, "effects are carried out first: they tell of what was"
    gone = {engine.sources[number] for number in successors}
    assert all(number in successors for number, each in enumerate(engine.sources) if each in gone)
    waiting = [each for each in engine.outbox.queued.values() if each.application in successors]
    retries = [(rank, rank.retries.take(successors)) for rank in engine.ranks]
    apart = {request.rid for _, taken in retries for retry in taken for request in retry.requests}
    _note_foreign(engine, successors)
    homeless = _take_backends(engine, now_ns, gone, owners)
    homes = {number: engine.home(engine.sources[number]) for number in successors}
    for source in gone:
        engine.home(source).retire(source)
    _hand_over(engine, successors, homes, waiting)
    for number, successor in sorted(successors.items()):
        source = successor.source
        if source.shares_backends and source.application == number:
            homes[number].tell_pool(now_ns, source)
    for each in homeless:
        owner = owners.get(each.state.backend)
        home = None if owner is None else engine.sources[owner]
        each.rank.adopt(now_ns, each.state, home, each.resident)
    for rank, taken in retries:
        for retry in taken:
            _retry(engine, now_ns, rank, retry)
    for request in waiting:
        if request.rid not in apart:
            source = engine.sources[request.application]
            source.desk.refresh(now_ns, source, source.on_request(now_ns, request))


def _note_foreign(engine: Engine, successors: Mapping[int, Successor]) -> None:
    """Remember what runs for sources that go: those in their place know nothing of it."""
    running: list[Batch] = []
    for rank in engine.ranks:
        for state in rank.backends.values():
            running += state.batches()
    running = [each for each in running if each.retry is None]
    known = [batch for batch in engine.foreign if any(batch is each for each in running)]
    new = [each for each in running if each.requests[0].application in successors]
    engine.foreign = known + [each for each in new if not any(each is one for one in known)]


def _take_backends(
    engine: Engine, now_ns: int, gone: set[Source], owners: Mapping[int, int | None]
) -> list[_Homeless]:
    """Release backends whose owner goes, and those that another one has from now on."""
    found: list[_Homeless] = []
    for backend, rank in sorted(engine.backend_rank.items()):
        state = rank.backends[backend]
        leaves = state.owner in gone
        if backend in owners and not leaves:
            owner = owners[backend]
            leaves = state.owner is not (None if owner is None else engine.sources[owner])
        if leaves:
            resident = state.resident
            rank.release(now_ns, state)
            found.append(_Homeless(rank, state, resident))
    return found


def _hand_over(
    engine: Engine,
    successors: Mapping[int, Successor],
    homes: Mapping[int, RankThread],
    waiting: list[Request],
) -> None:
    """Put sources and admissions in the places of others; who waits counts for the new ones."""
    for number, each in sorted(successors.items()):
        before = engine.admissions[number]
        mine = [request for request in waiting if request.application == number]
        if before is not None and before is not each.admission:
            for request in mine:
                before.on_left(request, DropReason.CANCELLED)
            before.on_move(engine.sources[number].pool)
        if each.source.number < 0:
            each.source.application = number
            homes[number].add_source(each.source)
        engine.sources[number] = each.source
        engine.admissions[number], engine.runs[number] = each.admission, each.runs
        if each.admission is not None and before is not each.admission:
            for request in mine:
                each.admission.on_queued(request)
    engine.admits = any(each is not None for each in engine.admissions)


def _retry(engine: Engine, now_ns: int, rank: RankThread, retry: Retry) -> None:
    source = engine.sources[retry.requests[0].application]
    owner = source if source.owns_backends else None
    rank.refresh(now_ns, rank.retries, rank.retries.put_back(owner, retry))
