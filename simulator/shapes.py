"""Shape buckets of simulated requests: each bucket is an application of its own in the engine."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fermata.applications.application import Application
from fermata.applications.reader import bucketed, router_names
from fermata.applications.shapes import ShapesOptions
from fermata.foundation.refusals import refuse
from fermata.simulator.arrivals import Arrivals, Times
from fermata.simulator.scenario.scenario import Scenario


def spread(scenario: Scenario, arrivals: Arrivals) -> tuple[Scenario, Arrivals]:
    """The scenario with an application for each bucket, and its requests in their buckets."""
    if all(each.shapes is None for each in scenario.applications):
        return scenario, arrivals
    number = arrivals.application.copy()
    first = 0
    for place, application in enumerate(scenario.applications):
        here = np.flatnonzero(arrivals.application == place)
        number[here] = first + _draw(scenario, place, len(here))
        first += len(bucketed((application,)))
    parts = bucketed(scenario.applications)
    named = zip(parts, router_names(parts), strict=True)
    applications = tuple(replace(each, name=name) for each, name in named)
    pairs = zip(scenario.applications, scenario.homes, strict=False)
    homes = tuple(home for each, home in pairs for _ in bucketed((each,)))
    changed = replace(scenario, applications=applications, homes=homes)
    return changed, replace(arrivals, application=number)


def _draw(scenario: Scenario, place: int, count: int) -> Times:
    """The place of each request's bucket, among those of its application."""
    application = scenario.applications[place]
    shapes = application.shapes
    if shapes is None:
        return np.zeros(count, np.int64)
    _check(application, shapes)
    rng = np.random.default_rng([scenario.seed, place, 29])
    sizes = np.array(shapes.sizes or shapes.buckets)
    return np.searchsorted(np.array(shapes.buckets), rng.choice(sizes, count))


def _check(application: Application, shapes: ShapesOptions) -> None:
    if application.clients:
        rule = "cannot be simulated with clients; leave clients out"
        refuse(f"shapes of {application.name}", list(shapes.buckets), rule)


def whole_variants(applications: Sequence[Application]) -> list[int]:
    """By variant of the engine: its number where no application is in buckets."""
    found: list[int] = []
    first = 0
    for application in applications:
        own = range(first, first + len(application.variants))
        found += [number for _ in bucketed((application,)) for number in own]
        first += len(application.variants)
    return found
