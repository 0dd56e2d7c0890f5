"""Pairs of workloads of which one is easier: less load, one variant more, one backend more.

Both share their arrivals; under less load these are stretched. A sound policy earns no less on the
easier one.
"""

from collections.abc import Iterator
from copy import deepcopy
from random import Random

from fermata.foundation.json_types import JsonObject
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import read_scenario
from fermata.simulator.tournament.draw import draw
from fermata.simulator.tournament.families import VARIANTS_MAX
from fermata.simulator.tournament.play import earned, played_by

CHANGES = ("load", "variant", "backend")
LESS_LOAD = 0.8


def falls(seed: int, change: str, policies: tuple[str, ...]) -> Iterator[float]:
    """Utility that each policy loses where a draw is made easier, in points."""
    fewest = 3 if change == "variant" else 2
    document = draw(seed, (fewest, VARIANTS_MAX)).document
    harder, easier = pair(seed, document, change)
    for policy in policies:
        yield 100.0 * (_utility(harder, policy) - _utility(easier, policy))


def pair(seed: int, document: JsonObject, change: str) -> tuple[JsonObject, JsonObject]:
    """The draw made harder or easier, the easier one last."""
    other = dict(deepcopy(document))
    if change == "load":
        other["rate_rps"] = LESS_LOAD * float(str(document["rate_rps"]))
        for key in ("duration_s", "warmup_s"):
            other[key] = float(str(document[key])) / LESS_LOAD
        return document, other
    if change == "backend":
        groups = other["backends"]
        if isinstance(groups, list):
            assert isinstance(groups[0], dict)
            groups[0]["count"] = int(str(groups[0]["count"])) + 1
        else:
            other["backends"] = int(str(groups)) + 1
        return document, other
    place = Random(f"tournament pairs {seed}").random()
    rows = other["applications"]
    assert isinstance(rows, list)
    for row in rows:
        assert isinstance(row, dict)
        variants = row["variants"]
        assert isinstance(variants, list)
        # The cheapest stays: without it nothing may be left that runs in time.
        del variants[1 + int(place * (len(variants) - 1))]
    return other, document


def _utility(document: JsonObject, policy: str) -> float:
    scenario = read_scenario(document)
    log = Driver(played_by(scenario, policy)).run()
    return earned(scenario, log, True)[0]
