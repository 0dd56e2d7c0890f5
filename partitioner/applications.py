"""Applications as placement sees them."""

from collections.abc import Sequence

from fermata.partitioner.accuracy_mix import RatedProfile
from fermata.partitioner.plan import ANY_KIND, PlacedModel
from fermata.profiles.profile import Profile

ASSUMED_RPS = 1.0
"""Rate of each application before any has been measured: they count alike."""


def placed_application(
    name: str,
    variants: Sequence[Profile],
    batch_sizes: Sequence[int],
    slo_ns: int,
    rate_rps: float = ASSUMED_RPS,
    choices: tuple[RatedProfile, ...] = (),
    accuracy: float | None = None,
) -> PlacedModel:
    """An application with all its variants, which live together: any may serve the next request.

    `batch_sizes` are the largest batches of each. One batch runs at a time, so that working memory
    counts once. The number of backends that a rate needs is that of the first variant, unless the
    policy chooses among some (`choices`) and has a mean accuracy to hold.
    """
    dynamic = [
        each.dynamic_bytes_at(min(size, each.batch_size_max or size))
        for each, size in zip(variants, batch_sizes, strict=True)
    ]
    return PlacedModel(
        name,
        rate_rps,
        sum(each.static_bytes for each in variants),
        max(dynamic),
        # A move whose cost is not known is not free.
        sum(each.load_ns for each in variants) / 1e6 or 1.0,
        {ANY_KIND: variants[0]},
        slo_ns,
        choices,
        accuracy,
    )
