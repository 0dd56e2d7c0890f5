"""The leanest driver of the core: its own cost is small beside what it measures."""

import hashlib
import time
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from fermata.foundation.units import NEVER, SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Request
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import DeferredOptions

ALPHA_MS, BETA_MS, SLO_MS = 1.053, 5.072, 100.0
LOAD = 0.9
"""Of what the backends can do with the batches that each model's own rate lets it form."""


@dataclass(frozen=True, slots=True)
class Drive:
    requests: int
    cpu_s: float
    digest: str
    """Of every dispatch: backend, variant, start and requests."""

    @property
    def per_cpu_s(self) -> float:
        return self.requests / self.cpu_s


def drive(models: int, backends: int, requests: int, seed: int = 1) -> Drive:
    """CPU cost and digest of so many Poisson requests on so many models and backends."""
    costs = Costs()
    engine = Engine(costs)
    size_max = int((SLO_MS - BETA_MS) / ALPHA_MS)
    p50_ns = [ms(ALPHA_MS * size + BETA_MS) for size in range(1, size_max + 1)]
    for model in range(models):
        costs.add(model, p50_ns)
        engine.add_application(ModelThread(model, DeferredOptions()))
    for backend in range(backends):
        engine.on_backend_up(0, backend)
    rate_rps = _offered_rps(models, backends)
    rng = np.random.default_rng(seed)
    at_ns = np.cumsum(rng.exponential(SECOND / rate_rps, requests)).astype(np.int64).tolist()
    model_of = rng.integers(0, models, requests).tolist()
    digest = hashlib.sha256()
    began_s = time.process_time()
    _loop(engine, p50_ns, [*at_ns, NEVER], model_of, digest)
    return Drive(requests, time.process_time() - began_s, digest.hexdigest()[:16])


def _offered_rps(models: int, backends: int) -> float:
    """A batch gathers for b / lambda and runs for l(b), within the SLO; both follow the rate."""
    rate_rps = backends * 1000 / ALPHA_MS
    for _ in range(50):
        gather_ms = 1000 * models / rate_rps
        size = max(1.0, (SLO_MS - BETA_MS) / (ALPHA_MS + gather_ms))
        rate_rps = LOAD * backends * 1000 * size / (ALPHA_MS * size + BETA_MS)
    return rate_rps


def _loop(
    engine: Engine,
    p50_ns: list[int],
    at_ns: list[int],
    model_of: list[int],
    digest: "hashlib._Hash",
) -> None:
    slo_ns = ms(SLO_MS)
    ends: list[tuple[int, int, int]] = []
    effects = engine.outbox.effects
    index = 0
    while True:
        arrival_ns, wake_ns = at_ns[index], engine.wake_at_ns()
        end_ns = ends[0][0] if ends else NEVER
        if end_ns <= arrival_ns and end_ns <= wake_ns:
            if end_ns == NEVER:
                return
            now_ns, backend, run_ns = heappop(ends)
            engine.on_done(now_ns, backend, run_ns)
        elif arrival_ns <= wake_ns:
            now_ns = arrival_ns
            engine.on_request(now_ns, Request(index, model_of[index], now_ns, now_ns + slo_ns))
            index += 1
        else:
            now_ns = wake_ns
            engine.on_time(now_ns)
        if effects:
            for effect in engine.take_effects():
                if isinstance(effect, Dispatch):
                    batch = effect.batch
                    run_ns = p50_ns[len(batch.requests) - 1]
                    heappush(ends, (now_ns + run_ns, effect.backend, run_ns))
                    first = batch.requests[0].rid
                    entry = (effect.backend, batch.variant, now_ns, len(batch.requests), first)
                    digest.update(repr(entry).encode())
