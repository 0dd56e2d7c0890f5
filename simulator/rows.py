"""Rows of simulated requests."""

from collections.abc import Sequence

import numpy as np

from fermata.applications.application import Application
from fermata.foundation.refusals import refuse
from fermata.router.policies.auto import resolved
from fermata.router.policies.catalog import POLICIES
from fermata.simulator.arrivals import Arrivals
from fermata.simulator.scenario.scenario import Scenario


def draw_rows(scenario: Scenario, arrivals: Arrivals, sizes_max: Sequence[int]) -> list[int] | None:
    """Rows of each request, drawn evenly from its application's; None where all have one.

    `sizes_max` is the largest batch of each application.
    """
    if not any(each.rows for each in scenario.applications):
        return None
    found = np.ones(len(arrivals.at_ns), np.int64)
    for number, application in enumerate(scenario.applications):
        if not application.rows:
            continue
        _check(application, application.policy or scenario.policy, sizes_max[number])
        rng = np.random.default_rng([scenario.seed, number, 23])
        here = np.flatnonzero(arrivals.application == number)
        found[here] = rng.choice(np.array(application.rows), len(here))
    return [int(each) for each in found]


def _check(application: Application, policy: str, size_max: int) -> None:
    """Refuse rows that frontends of a server would split: simulations have none."""
    most = max(application.rows)
    policy, _ = resolved(application, policy, {})
    if most > 1 and not POLICIES[policy].counts_rows:
        refuse(f"rows of {application.name}", most, f"must be 1 with policy {policy}")
    if most > size_max:
        refuse(f"rows of {application.name}", most, f"is above its largest batch, {size_max}")
