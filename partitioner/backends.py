"""The number of backends that a sub-cluster needs for its models (Symphony Eqns 2 and 3)."""

import math
from collections.abc import Sequence

from fermata.foundation.units import SECOND
from fermata.partitioner.accuracy_mix import BATCH_SIZE_MAX, backends_at_accuracy
from fermata.partitioner.plan import PlacedModel
from fermata.router.policies.sizing import full_size


def backends_for(model: PlacedModel, kind: str = "") -> float | None:
    """Backends, in fractions, that keep up with the model's rate in the largest batches that its
    SLO allows, at the mean accuracy that it is to hold; None where its profile or SLO is not known,
    or no variant is as accurate."""
    profile = model.profile_on(kind)
    if profile is None or model.slo_ns <= 0:
        return None
    if model.rate_rps <= 0.0:
        return 0.0
    if model.choices and model.accuracy is not None:
        return backends_at_accuracy(model.choices, model.slo_ns, model.rate_rps, model.accuracy)
    size_max = profile.batch_size_max or BATCH_SIZE_MAX
    plan_ns = [0, *profile.table_ns(size_max)]
    size = full_size(plan_ns, model.slo_ns, model.rate_rps)
    return model.rate_rps * plan_ns[size] / (size * SECOND)


def backends_needed(
    models: Sequence[PlacedModel], kind: str = "", utilisation: float = 1.0
) -> int | None:
    """Whole backends for all of them together: fractions add up, as any may run any model (4.1).

    `utilisation` is how busy they may be on average.
    """
    total = 0.0
    for model in models:
        needed = backends_for(model, kind)
        if needed is None:
            return None
        total += needed
    return math.ceil(total / utilisation - 1e-9)
