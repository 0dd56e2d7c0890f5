"""An unequal fleet live: emulated backends of three kinds, twelve models, and what a plan promises.

The promise is that of Eqns 2 and 3, kind by kind: all models run on each kind in their shares, in
batches as large as their rate and SLO let them be, and every backend is busy throughout. Models are
slow, so that few requests keep the fleet busy on two cores.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.autoscale_live import Ledger, send
from benchmarks.figures import Figure, run
from benchmarks.kills import is_good, unanswered
from benchmarks.live_server import Running, fermata
from fermata.partitioner.backends import backends_at
from fermata.profiles.profile import Profile, slowed
from fermata.profiles.store import load_table

TABLE = "h200-eager"
NETWORKS = (
    *("resnet50", "mobilenet_v3_large", "googlenet", "vit_b_16", "densenet121", "bert_base"),
    *("efficientnet_b0", "inception_v3", "resnet101", "convnext_tiny", "bert_mini", "vgg16"),
)
SKEW = 0.8
"""Shares of the models fall with their place to this power."""
GROUPS = ((3, 30.0), (2, 60.0), (1, 90.0))
"""Backends of each kind, and how many times slower than its profile it runs."""
BATCH_MAX = 8
SLO_MS = 4000.0
SHARES = (1.0, 0.97, 0.93)
"""Loads of the runs over the promise, until one is served."""
SETTLE_S, LOAD_S, QUICK_S = 10.0, 60.0, 10.0
SERVED, GOAL = 0.99, 0.93
BEGIN_S = 120.0


def profiles() -> list[Profile]:
    known = {each.name: each for each in load_table(TABLE).profiles}
    return [known[name] for name in NETWORKS]


def shares() -> list[float]:
    weights = [(place + 1) ** -SKEW for place in range(len(NETWORKS))]
    return [each / sum(weights) for each in weights]


def promised_rps() -> float:
    """Requests a second of all models on all kinds together."""
    return sum(_on_kind(slower, count) for count, slower in GROUPS)


def _on_kind(slower: float, backends: int) -> float:
    """The rate at which so many backends of one kind are busy throughout."""
    tables = [(0, *slowed(each, slower).table_ns(BATCH_MAX)) for each in profiles()]
    low, high = 0.0, 1e4
    for _ in range(50):
        middle = (low + high) / 2
        need = sum(
            backends_at(run_ns, int(SLO_MS * 1e6), middle * share)
            for run_ns, share in zip(tables, shares(), strict=True)
        )
        low, high = (middle, high) if need < backends else (low, middle)
    return low


def config() -> dict[str, Any]:
    return {
        "applications": [
            {
                "name": name,
                "slo_ms": SLO_MS,
                "input": {"name": "input", "dtype": "UINT8", "shape": [2_000]},
                "variants": [
                    {
                        "name": f"{name}-1",
                        "model": "emulated",
                        "profile": f"{TABLE}/{name}",
                        "batch_size_max": BATCH_MAX,
                    }
                ],
            }
            for name in NETWORKS
        ],
        "frontend": {"processes": 1},
        "backend": {"device": "emulated", "cpus": 0.1},
        "backends": [{"count": count, "slower": slower} for count, slower in GROUPS],
    }


def wait_for_all(server: Running) -> None:
    end_s = time.monotonic() + BEGIN_S
    wanted = sum(count for count, _ in GROUPS)
    while sum(bool(each["models"]) for each in server.status()["backends"].values()) < wanted:
        if time.monotonic() > end_s:
            raise TimeoutError(f"not all of {wanted} backends came in {BEGIN_S:g} s")
        time.sleep(0.2)


def play(server: Running, rate_rps: float, load_s: float) -> tuple[Ledger, float]:
    """A steady load; the ledger after it has settled, and the good requests a second."""
    steps = int((SETTLE_S + load_s) / SETTLE_S)
    traces = {
        name: [rate_rps * share] * steps for name, share in zip(NETWORKS, shares(), strict=True)
    }
    ledger = send(server, traces, SETTLE_S, SLO_MS)
    settled = ledger["scheduled_ns"] >= SETTLE_S * 1e9
    kept = {name: column[settled] for name, column in ledger.items()}
    return kept, float(is_good(kept, SLO_MS).sum()) / (SETTLE_S * (steps - 1))


def measure(quick: bool, given: Sequence[float] = SHARES) -> Iterator[Figure]:
    promise_rps = promised_rps()
    title = f"{len(NETWORKS)} models on {len(GROUPS)} kinds of backends"
    print(f"  promised: {promise_rps:.1f} req/s", file=sys.stderr)
    served, lost = 0.0, 0
    with fermata(**config()) as server:
        wait_for_all(server)
        full = 0.0
        for share in given:
            ledger, good_rps = play(server, share * promise_rps, QUICK_S if quick else LOAD_S)
            good = float(is_good(ledger, SLO_MS).mean())
            lost += unanswered(ledger)
            print(f"  {share:.2f} of it: {good:.4f} good, {good_rps:.1f} req/s", file=sys.stderr)
            if share == given[0]:
                full = good_rps / promise_rps
            if good >= SERVED:
                served = good_rps / promise_rps
                break
    yield Figure(f"{title}: good, offered what is promised, over the promise", full, "", GOAL)
    yield Figure(f"{title}: goodput with 99 % in time over the promise", served, "", GOAL)
    yield Figure(f"{title}: requests lost", lost, "", 0, at_most=True)


if __name__ == "__main__":
    run("An unequal fleet", measure)
