"""Shared backends: seven applications, one of each policy, against each alone on its share.

The load is 60 % of what the backends serve if every request runs alone on the smallest variant:
some policies run nothing else. Where policies share backends, the share of one is all of them,
seven times slower; otherwise it is the backends that it is given.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks.figures import Figure, run
from fermata.router.policies.catalog import POLICIES as CATALOG
from fermata.router.policies.ownership import Ownership
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario, read_scenario

POLICIES = ("auto", "ramsis", "routing", "jellyfish", "sneakpeek", "central-queue", "deferred")
VARIANTS = (("small", 0.5, 0.70, 160), ("middle", 1.0, 0.76, 192), ("large", 2.0, 0.80, 224))
"""Name, alpha in ms, accuracy, input size; beta is three times alpha."""
ALONE_S = 0.002
"""Run time of one request on the smallest variant."""
LOAD = 0.6
SLO_MS = 100
COUNTS = (1, 2, 8)
Earned = dict[str, tuple[float, float]]
"""By application: utility, and the share of requests not answered in time."""


def application(policy: str) -> dict[str, object]:
    variants = [
        {
            "name": f"{policy}-{name}",
            "alpha_ms": alpha_ms,
            "beta_ms": 3 * alpha_ms,
            "accuracy": accuracy,
            "input_size": side,
        }
        for name, alpha_ms, accuracy, side in VARIANTS
    ]
    options = {"window_ms": 10} if policy == "sneakpeek" else {}
    named = {"name": policy, "slo_ms": SLO_MS, "policy": policy, "policy_options": options}
    return {**named, "variants": variants}


def scenario(
    policies: tuple[str, ...], backends: object, rate_rps: float, seconds: float
) -> Scenario:
    return read_scenario(
        {
            "seed": 5,
            "duration_s": seconds,
            "backends": backends,
            "rate_rps": rate_rps,
            "applications": [application(policy) for policy in policies],
        }
    )


def earned(one: Scenario) -> Earned:
    log = simulate(one)
    arrivals, accuracy = log.arrivals, np.array([each or 0.0 for each in log.accuracy])
    measured = arrivals.at_ns >= one.warmup_ns
    good = measured & (log.end_ns > 0) & (log.end_ns - arrivals.at_ns <= arrivals.slo_ns)
    found: Earned = {}
    for number, each in enumerate(one.applications):
        mine = arrivals.application == number
        count = max(1, int((mine & measured).sum()))
        worth = float(accuracy[log.variant[mine & good]].sum())
        found[each.name] = (worth / count, 1.0 - float((mine & good).sum()) / count)
    return found


def share_of(policy: str, backends: int) -> dict[str, object]:
    """The backends of one application alone, as worth as much as its share of all."""
    pooled = [each for each in POLICIES if not CATALOG[each].owns_backends]
    owners: dict[int | None, float] = {None: len(pooled)}
    owners |= {place: 1.0 for place, each in enumerate(POLICIES) if each not in pooled}
    if backends < len(owners):
        return {"count": backends, "kind": "part", "slower": len(POLICIES)}
    ownership = Ownership(owners)
    taken = [ownership.take(backend) for backend in range(backends)]
    if policy in pooled:
        return {"count": taken.count(None), "kind": "part", "slower": len(pooled)}
    return {"count": taken.count(POLICIES.index(policy))}


def measure(quick: bool) -> Iterator[Figure]:
    seconds = 5 if quick else 30
    for backends in COUNTS[:1] if quick else COUNTS:
        rate_rps = LOAD * backends / ALONE_S
        shared = earned(scenario(POLICIES, backends, rate_rps, seconds))
        name = f"{len(POLICIES)} policies on {backends} backends at {LOAD:.0%}"
        worst = max(bad for _, bad in shared.values())
        yield Figure(f"{name}: bad of the worst", 100.0 * worst, "%", 1.0, at_most=True)
        for policy in POLICIES:
            part = [share_of(policy, backends)]
            own = earned(scenario((policy,), part, rate_rps / len(POLICIES), seconds))[policy]
            lost = 100.0 * (own[0] - shared[policy][0])
            yield Figure(
                f"{name}, {policy}: utility below that on its share alone",
                lost,
                "points",
                0.5,
                at_most=True,
            )


if __name__ == "__main__":
    run("Shared backends", measure)
