"""Cameras on an engine and a virtual clock: how many of each one's frames are late or dropped."""

import heapq
import itertools
from collections.abc import Sequence

from fermata.foundation.units import SECOND, ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.events import ClientReport, Dispatch, Drop, Request
from fermata.router.policies.application import ApplicationSpec, VariantSpec

SLO_NS = ms(100)
# A batch of three takes 40 ms: 75 frames a second.
VARIANT = VariantSpec("only", (ms(15), ms(28), ms(40)), accuracy=0.8, input_size=320)


def misses(
    sent_fps: Sequence[float],
    declared_fps: Sequence[float],
    seconds: int = 20,
    variants: tuple[VariantSpec, ...] = (VARIANT,),
    kinds: Sequence[int] = (0,),
) -> list[float]:
    """Share of each camera's frames that are dropped or late, after two seconds.

    `kinds` are those of the backends. Runs take as long as is planned for their kind.
    """
    spec = ApplicationSpec("cameras", SLO_NS, variants)
    engine = assemble(RouterConfig((spec,), "jellyfish", lead_ns=0)).engine
    for backend, kind in enumerate(kinds):
        engine.on_backend_up(0, backend, kind=kind, owner=0)
    order = itertools.count()
    events: list[tuple[int, int, str, int]] = []
    for camera, fps in enumerate(sent_fps):
        for frame in range(int(fps * seconds)):
            at_ns = int((frame + camera / 7) / fps * SECOND)
            heapq.heappush(events, (at_ns, next(order), "frame", camera))
    total, bad = [0] * len(sent_fps), [0] * len(sent_fps)
    began: dict[int, tuple[int, int, list[Request]]] = {}
    rids = itertools.count()
    while events:
        wake_at_ns = engine.wake_at_ns()
        if wake_at_ns < events[0][0]:
            now_ns = wake_at_ns
            engine.on_time(now_ns)
        else:
            now_ns, _, kind_of_event, what = heapq.heappop(events)
            if kind_of_event == "done":
                backend, run_ns, requests = began.pop(what)
                for request in requests:
                    late = now_ns > request.deadline_ns
                    bad[request.client] += late and request.arrived_at_ns >= 2 * SECOND
                engine.on_done(now_ns, backend, run_ns)
            else:
                report = ClientReport(what, SLO_NS, declared_fps[what], 50e6, 320, 100_000)
                engine.on_report(now_ns, 0, report)
                total[what] += now_ns >= 2 * SECOND
                request = Request(next(rids), 0, now_ns, now_ns + ms(97), client=what)
                engine.on_request(now_ns, request)
        for effect in engine.take_effects():
            if isinstance(effect, Dispatch):
                batch = effect.batch
                number = next(order)
                began[number] = (effect.backend, batch.plan_ns, list(batch.requests))
                end_ns = max(now_ns, batch.start_at_ns) + batch.plan_ns
                heapq.heappush(events, (end_ns, number, "done", number))
            elif isinstance(effect, Drop):
                bad[effect.request.client] += effect.request.arrived_at_ns >= 2 * SECOND
    return [lost / count for lost, count in zip(bad, total, strict=True)]
