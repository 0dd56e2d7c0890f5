"""Shares of the applications in the whole rate: the `popularity` of a scenario, and weights."""

import math
from collections.abc import Sequence

from fermata.applications.application import Application
from fermata.foundation.refusals import refuse
from fermata.foundation.validation import Fields

ZIPF_MAX = 20.0
RATES_SET = "these arrivals set the rate of each application"


def read_shares(
    top: Fields, applications: tuple[Application, ...], have_rates: bool
) -> tuple[float, ...]:
    """Each application's part of the rate, by its weight or by the popularity.

    A weight that would be without effect is refused by name. `have_rates`: the arrivals set the
    rate of each application.
    """
    weights = [application.weight for application in applications]
    odd = next((each for each in applications if each.weight != 1.0), None)
    shares = _read_popularity(top, weights)
    if odd is None:
        return shares
    by_weight = _shares(weights)
    told = f"weight={odd.weight:g} of application {odd.name!r}"
    if have_rates and len({*weights}) > 1:
        refuse("arrivals", top.data.get("arrivals"), f"{told} has no effect: {RATES_SET}")
    if any(not math.isclose(*pair) for pair in zip(shares, by_weight, strict=True)):
        given = top.data.get("popularity")
        refuse("popularity", given, f"contradicts {told}; leave one of them out")
    return shares


def _read_popularity(top: Fields, weights: Sequence[float]) -> tuple[float, ...]:
    popularity = top.data.get("popularity", "weights")
    count = len(weights)
    if popularity == "weights":
        return _shares(weights)
    if popularity == "equal":
        return (1.0 / count,) * count
    if not isinstance(popularity, dict):
        refuse("popularity", popularity, "must be equal, weights or {zipf: exponent}")
    zipf = top.inner("popularity", ("zipf",)).number("zipf")
    if zipf > ZIPF_MAX:
        refuse("popularity.zipf", zipf, f"must be at most {ZIPF_MAX:g}")
    return _shares([1.0 / rank**zipf for rank in range(1, count + 1)])


def _shares(weights: Sequence[float]) -> tuple[float, ...]:
    total = sum(weights)
    if total <= 0:
        refuse("applications", "weight", "must be above 0 for at least one application")
    return tuple(weight / total for weight in weights)
