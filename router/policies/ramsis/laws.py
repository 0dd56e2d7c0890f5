"""Options of RAMSIS that are more than numbers: laws of arrival counts by name, and SLOs."""

from collections.abc import Iterable

import numpy as np

from fermata.foundation.refusals import check_positive, refuse
from fermata.foundation.user_code import import_function
from fermata.router.policies.application import VariantSpec
from fermata.router.policies.ramsis.counts import Bursty, CountLaw, poisson
from fermata.router.policies.ramsis.options import RamsisOptions

WHERE = "policy_options.law"


def check_ramsis(options: RamsisOptions) -> None:
    """Refuse a law that is none, and SLOs that do not go with their shares."""
    law_of(options)
    slos_ms, shares = options.slos_ms, options.slo_shares
    for slo_ms in slos_ms:
        check_positive("policy_options.slos_ms", slo_ms)
    if len(set(slos_ms)) < len(slos_ms):
        refuse("policy_options.slos_ms", list(slos_ms), "must differ from one another")
    for share in shares:
        check_positive("policy_options.slo_shares", share)
    if shares and len(shares) != len(slos_ms):
        refuse("policy_options.slo_shares", list(shares), "must be as many as slos_ms")


def check_queue(options: RamsisOptions, variants: Iterable[VariantSpec]) -> None:
    """Refuse a queue that is too short for the batches that are asked for."""
    for variant in variants:
        if 0 < options.queue_max < variant.batch_size_max:
            rule = f"is below batch_size_max={variant.batch_size_max} of {variant.name}"
            refuse("policy_options.queue_max", options.queue_max, f"{rule}; leave one of them out")


def law_of(options: RamsisOptions) -> CountLaw:
    """`poisson`, `bursty`, or the function that `module:name` names; refused where it is no law."""
    if options.law == "poisson":
        return poisson
    if options.law == "bursty":
        if options.burst_ns <= 0:
            refuse("policy_options.burst_ms", options.burst_ns / 1e6, "must be above 0")
        return Bursty(options.burst_ns / 1e9)
    module, _, name = options.law.partition(":")
    if not module or not name:
        refuse(WHERE, options.law, "must be poisson, bursty or a function as module:name")
    try:
        law: CountLaw = import_function(options.law)
    except (ImportError, AttributeError) as error:
        refuse(WHERE, options.law, f"cannot be loaded ({error})")
    _check(options.law, law)
    return law


def _check(given: str, law: CountLaw) -> None:
    """Refuse what does not give logarithms of probabilities of 0, 1, 2... arrivals."""
    times_s = np.array([0.0, 0.01, 0.1])
    try:
        chances = np.exp(np.asarray(law(100.0, times_s, 50), np.float64))
    except (TypeError, ValueError) as error:
        refuse(WHERE, given, f"cannot be called as law(rate_rps, times_s, count_max) ({error})")
    if chances.shape != (3, 51):
        refuse(WHERE, given, f"must give 51 logarithms for each of 3 times, not {chances.shape}")
    sums = chances.sum(axis=1)
    if not np.all((chances >= 0.0) & (chances <= 1.0 + 1e-9)) or not np.all(sums <= 1.0 + 1e-6):
        refuse(WHERE, given, "must give logarithms of probabilities that sum to at most 1")
    if abs(chances[0, 0] - 1.0) > 1e-6 or chances[1, 0] >= 1.0:
        refuse(WHERE, given, "must let nothing arrive in no time, and something in 10 ms at 100/s")
