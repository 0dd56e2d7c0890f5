"""The number of backends that a sub-cluster needs for its models (Symphony Eqns 2 and 3)."""

import math
from collections.abc import Sequence
from functools import lru_cache

from fermata.foundation.units import SECOND
from fermata.partitioner.accuracy_mix import BATCH_SIZE_MAX, backends_at_accuracy
from fermata.partitioner.plan import PlacedModel
from fermata.profiles.profile import Profile
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
    run_ns, size = run_times_ns(profile), model.batch_size
    if size:
        return model.rate_rps * run_ns[size] / (size * SECOND * model.utilisation)
    return backends_at(run_ns, model.slo_ns, model.rate_rps)


@lru_cache(maxsize=4096)
def run_times_ns(profile: Profile) -> tuple[int, ...]:
    """Run times by batch size, as far as batches may go; [0] is none."""
    return (0, *profile.table_ns(profile.batch_size_max or BATCH_SIZE_MAX))


def backends_at(run_ns: Sequence[int], slo_ns: int, rate_rps: float) -> float:
    """Backends, in fractions, that these run times take for a rate in the largest batches."""
    size = full_size(run_ns, slo_ns, rate_rps)
    return rate_rps * run_ns[size] / (size * SECOND)


def work_of(
    models: Sequence[PlacedModel], kinds: Sequence[str]
) -> tuple[list[float], dict[str, float]]:
    """The work of each model, in backends of the first kind, and how slow each kind is for it.

    A model that needs more on one kind needs more on the others. What is left of the differences
    are SLOs, so a model counts as the mean of its kinds, and a kind as the mean of its models.
    """
    needs = {
        kind: {each.name: backends_for(each, kind) or 0.0 for each in models if each.runs_on(kind)}
        for kind in dict.fromkeys(kinds)
    }
    first, *_ = needs.values()
    slowness: dict[str, float] = {}
    for kind, own in needs.items():
        both = first.keys() & own.keys()
        there, here = sum(first[name] for name in both), sum(own[name] for name in both)
        slowness[kind] = here / there if there > 0.0 and here > 0.0 else 1.0
    work: list[float] = []
    for each in models:
        on_kinds = [
            own[each.name] / slowness[kind] for kind, own in needs.items() if each.name in own
        ]
        work.append(sum(on_kinds) / max(1, len(on_kinds)))
    return work, slowness


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
