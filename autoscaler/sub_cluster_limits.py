"""Limits of the whole deployment, shared among its sub-clusters."""

from collections.abc import Sequence


def spread(count: int, parts: int) -> tuple[int, ...]:
    """The count in parts that are as even as possible."""
    share, more = divmod(count, parts)
    return tuple(share + (part < more) for part in range(parts))


def floors(minimum: int, parts: int) -> tuple[int, ...]:
    """The minimum of the deployment, divided over its sub-clusters.

    Each has one at the least, since the models of one without a backend are not served. So the
    sum may be above the minimum, and is never below it.
    """
    return tuple(max(1, share) if minimum > 0 else 0 for share in spread(minimum, parts))


def share_out(
    targets: Sequence[int], demands: Sequence[float], minimum: int, maximum: int
) -> tuple[int, ...]:
    """Targets of all sub-clusters within the limits of the deployment.

    Where they are too many, each gets its part of the minimum and the rest in proportion to its
    demand: overload is then shared, not left to the last one that asked. Where some sub-clusters
    have released all, the others keep the minimum. Zero for all of them is left as it is.
    """
    whole = sum(targets)
    if whole > maximum:
        parts = floors(minimum, len(targets))
        if sum(parts) > maximum:
            parts = (0,) * len(parts)
        given = [min(part, target) for part, target in zip(parts, targets, strict=True)]
        return hand_out(given, targets, demands, maximum)
    if 0 < whole < minimum:
        served = [minimum if target else 0 for target in targets]
        return hand_out(list(targets), served, demands, minimum)
    return tuple(targets)


def hand_out(
    given: list[int], limits: Sequence[int], demands: Sequence[float], whole: int
) -> tuple[int, ...]:
    """Give one at a time to the sub-cluster with the least for its demand, up to the whole."""
    for _ in range(whole - sum(given)):
        neediest = min(
            (each for each, limit in enumerate(limits) if given[each] < limit),
            key=lambda each: (given[each] / max(demands[each], 1e-9), -demands[each], each),
        )
        given[neediest] += 1
    return tuple(given)
