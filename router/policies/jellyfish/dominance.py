"""The variants of a zoo that are worth their place."""

from fermata.router.policies.application import VariantSpec
from fermata.router.policies.family import Family


def accurate_order(family: Family) -> list[int]:
    """The zoo's variants by rising accuracy. Left out are those that another one makes useless
    (section III-B), and those that may miss a recall floor, unless all may."""
    every = range(len(family.variants))
    strong = [index for index in every if index not in family.weak] or list(every)
    kept = [
        index
        for index in strong
        if not any(_makes_useless(family, other, index) for other in strong if other != index)
    ]
    return sorted(
        kept, key=lambda index: (family.accuracy[index], family.input_sizes[index], index)
    )


def _makes_useless(family: Family, one: int, other: int) -> bool:
    """Whether the one is as accurate as the other, as small, and as fast at every batch size on
    every kind of backend. Of two that are alike the first is kept."""
    better = family.accuracy[one] - family.accuracy[other]
    smaller = family.input_sizes[other] - family.input_sizes[one]
    if better < 0 or smaller < 0:
        return False
    first, second = (family.spec.variants[index] for index in (one, other))
    if not first.p50_ns or not second.p50_ns:
        # Larger pictures take longer; of equal ones, those listed first are taken for the faster.
        return smaller > 0 or one < other
    strictly = better > 0 or smaller > 0
    kinds = zip(_tables_ns(first), _tables_ns(second), strict=False)
    for mine, theirs in kinds:
        if len(mine) < len(theirs):
            return False
        pairs = list(zip(mine, theirs, strict=False))
        if any(own > other_ns for own, other_ns in pairs):
            return False
        strictly = strictly or any(own < other_ns for own, other_ns in pairs)
    return strictly or one < other


def _tables_ns(variant: VariantSpec) -> list[tuple[int, ...]]:
    """Median run times by batch size, on each kind of backend."""
    return [variant.p50_ns, *(each.p50_ns for each in variant.other_kinds)]
