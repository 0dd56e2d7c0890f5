"""Figures of a ledger."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fermata.clients.load.arrivals import Times
from fermata.clients.load.ledger import LOST, OK, UNSENT, LoadLedger
from fermata.foundation.json_types import JsonObject

QUANTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Latency is from the scheduled arrival, so a generator or server that lags hides nothing."""

    duration_s: float
    requests: int
    offered_rps: float
    good: int
    """Answered with a result within the SLO."""
    goodput_rps: float
    bad_rate: float
    late: int
    """Answered with a result, after the SLO."""
    refused: dict[str, int]
    """Refusals by status."""
    unsent: int
    """Could not leave in time: the server, or this generator, took no more."""
    lost: int
    """Sent, never answered."""
    duplicates: int
    strangers: int
    latency_ms: dict[str, float | None]
    """Quantiles over requests with a result."""
    pacing_ms_p99: float | None
    """How late requests left: the generator's own error, when the server is not the cause."""
    mean_batch: float | None
    worst_client_bad_rate: float | None
    messages: dict[str, str]

    def to_dict(self) -> JsonObject:
        return asdict(self)


def report(ledger: LoadLedger, slo_ns: Times, start_ns: int, end_ns: int) -> LoadReport:
    """Figures of the requests due between start and end; `slo_ns` is that of each target."""
    counted = (ledger.scheduled_ns >= start_ns) & (ledger.scheduled_ns < end_ns)
    duration_s = (end_ns - start_ns) / 1e9
    requests = int(counted.sum())
    served = counted & ledger.mask(OK)
    latency_ns = ledger.answered_ns - ledger.scheduled_ns
    good_rows = served & (latency_ns <= slo_ns[ledger.target])
    good = int(good_rows.sum())
    refused = {
        name: int((counted & ledger.mask(name)).sum())
        for name in ledger.outcomes[4:]
        if (counted & ledger.mask(name)).any()
    }
    sent = counted & (ledger.sent_ns >= 0)
    lag_ns = (ledger.sent_ns - ledger.scheduled_ns)[sent]
    batches = ledger.batch[served]
    return LoadReport(
        duration_s=duration_s,
        requests=requests,
        offered_rps=requests / duration_s,
        good=good,
        goodput_rps=good / duration_s,
        bad_rate=1 - good / requests if requests else 0.0,
        late=int(served.sum()) - good,
        refused=refused,
        unsent=int((counted & ledger.mask(UNSENT)).sum()),
        lost=int((counted & ledger.mask(LOST)).sum()),
        duplicates=ledger.duplicates,
        strangers=ledger.strangers,
        latency_ms=_quantiles(latency_ns[served]),
        pacing_ms_p99=float(np.percentile(lag_ns, 99)) / 1e6 if len(lag_ns) else None,
        # Each request saw its own batch: the harmonic mean gives every batch one vote.
        mean_batch=len(batches) / float((1 / batches).sum()) if (batches > 0).any() else None,
        worst_client_bad_rate=_worst_client(ledger.client[counted], good_rows[counted]),
        messages=ledger.messages,
    )


def _quantiles(latency_ns: Times) -> dict[str, float | None]:
    names = [*(f"p{q:g}" for q in QUANTILES), "max"]
    if not len(latency_ns):
        return dict.fromkeys(names)
    values = np.percentile(latency_ns, (*QUANTILES, 100.0)) / 1e6
    return {name: round(float(value), 3) for name, value in zip(names, values, strict=True)}


def _worst_client(client: Any, good: Any) -> float | None:
    if not client.any():
        return None
    sent = np.bincount(client)
    fine = np.bincount(client, weights=good)
    asked = sent > 0
    asked[0] = False
    return float((1 - fine[asked] / sent[asked]).max())
