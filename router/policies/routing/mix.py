"""How many instances of each variant there are to be."""

from collections.abc import Sequence

from fermata.foundation.refusals import refuse
from fermata.router.policies.family import Family


def read_mix(mix: str, family: Family, speed: Sequence[int]) -> tuple[int, ...]:
    """Weights of the family's variants from `2/2`, in the order of the configuration. Without
    one the two ends of the family are alike: its most accurate variant and its fastest."""
    count = len(family.variants)
    if not mix:
        if not family.accuracy:
            return tuple(int(variant == family.serving) for variant in family.variants)
        # A floor that no variant reaches leaves the best one.
        best = max(range(count), key=lambda index: family.accuracy[index])
        allowed = family.choices() or [best]
        ends = {
            max(allowed, key=lambda index: family.accuracy[index]),
            min(allowed, key=lambda index: speed[index]),
        }
        return tuple(int(index in ends) for index in range(count))
    parts = mix.split("/")
    if len(parts) != count or not all(part.strip().isdecimal() for part in parts):
        rule = f"must be {count} whole numbers with / between them, one for each variant"
        refuse("policy_options.mix", mix, f"{rule} of {family.name}")
    weights = tuple(int(part) for part in parts)
    if sum(weights) == 0:
        refuse("policy_options.mix", mix, "must hold a number above 0")
    _check_floors(mix, weights, family)
    return weights


def _check_floors(mix: str, weights: Sequence[int], family: Family) -> None:
    """Refuse instances of a variant that no request may run on."""
    choices = family.choices() if family.accuracy else range(len(weights))
    for place, weight in enumerate(weights):
        if weight == 0 or place in choices:
            continue
        name, floor = family.spec.variants[place].name, family.accuracy_floor
        fault = f"has an accuracy of {family.accuracy[place]:g}, below accuracy_floor={floor:g}"
        if family.accuracy[place] >= floor:
            fault = "may miss a recall floor"
        rule = f"variant {name!r} of {family.name} {fault}; give it 0 instances, or lower the floor"
        refuse("policy_options.mix", mix, rule)


def allot(weights: Sequence[int], instances: int, speed: Sequence[int]) -> list[int]:
    """Instances of each variant, in proportion to the weights; what is left over goes to the
    fastest first, since capacity is what a burst asks for."""
    total = sum(weights)
    counts = [instances * weight // total for weight in weights]
    rest = [instances * weight % total for weight in weights]
    order = sorted(range(len(weights)), key=lambda index: (-rest[index], speed[index]))
    for index in order[: instances - sum(counts)]:
        counts[index] += 1
    return counts
