"""Rates of cameras: measured, not believed, and each admitted up to its own share."""

import heapq
import itertools

import pytest

from fermata.clients.frames import thinned
from fermata.foundation.units import SECOND, ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.events import ClientReport, Dispatch, Drop, Request
from fermata.router.policies.application import ApplicationSpec, VariantSpec

SLO_NS = ms(100)
# A batch of three takes 40 ms: 75 frames a second.
VARIANT = VariantSpec("only", (ms(15), ms(28), ms(40)), accuracy=0.8, input_size=320)


def misses(sent_fps: list[float], declared_fps: list[float], seconds: int = 20) -> list[float]:
    """Share of each camera's frames that are dropped or late, after two seconds."""
    spec = ApplicationSpec("cameras", SLO_NS, (VARIANT,))
    engine = assemble(RouterConfig((spec,), "jellyfish", lead_ns=0)).engine
    engine.on_backend_up(0, 0, owner=0)
    order = itertools.count()
    events: list[tuple[int, int, str, int]] = []
    for camera, fps in enumerate(sent_fps):
        for frame in range(int(fps * seconds)):
            at_ns = int((frame + camera / 7) / fps * SECOND)
            heapq.heappush(events, (at_ns, next(order), "frame", camera))
    total, bad = [0] * len(sent_fps), [0] * len(sent_fps)
    began: dict[int, tuple[int, list[Request]]] = {}
    rids = itertools.count()
    while events:
        wake_at_ns = engine.wake_at_ns()
        if wake_at_ns < events[0][0]:
            now_ns = wake_at_ns
            engine.on_time(now_ns)
        else:
            now_ns, _, kind, what = heapq.heappop(events)
            if kind == "done":
                run_ns, requests = began.pop(what)
                for request in requests:
                    late = now_ns > request.deadline_ns
                    bad[request.client] += late and request.arrived_at_ns >= 2 * SECOND
                engine.on_done(now_ns, 0, run_ns)
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
                began[number] = (batch.plan_ns, list(batch.requests))
                end_ns = max(now_ns, batch.start_at_ns) + batch.plan_ns
                heapq.heappush(events, (end_ns, number, "done", number))
            elif isinstance(effect, Drop):
                bad[effect.request.client] += effect.request.arrived_at_ns >= 2 * SECOND
    return [lost / count for lost, count in zip(bad, total, strict=True)]


@pytest.mark.parametrize("declared", [8.0, 0.0, 1.0])
def test_cameras_that_send_more_than_they_say_harm_no_other(declared: float) -> None:
    found = misses([30.0, 30.0, 8.0, 8.0, 8.0, 8.0], [declared, declared, 8.0, 8.0, 8.0, 8.0])
    assert max(found[2:]) <= 0.01


def test_cameras_that_tell_the_truth_are_served_as_ever() -> None:
    assert max(misses([8.0] * 6, [8.0] * 6)) == 0.0
    # Their rates need not be told at all.
    assert max(misses([8.0] * 6, [0.0] * 6)) <= 0.01


@pytest.mark.parametrize(("source", "fps", "kept"), [(30, 8, 80), (30, 30, 300), (25, 30, 250)])
def test_live_source_is_thinned_to_the_rate_that_is_asked_for(
    source: int, fps: float, kept: int
) -> None:
    # Ten seconds of a camera whose frames come a little early or late.
    times = [frame / source + 0.004 * (frame % 3) for frame in range(10 * source)]
    clock = iter(times)
    found = list(thinned(iter([b""] * len(times)), fps, lambda: next(clock)))
    assert len(found) == pytest.approx(kept, abs=1)
