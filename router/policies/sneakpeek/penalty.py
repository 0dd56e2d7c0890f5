"""The cost of lateness: a share of a request's worth, by its relative lateness."""

from collections.abc import Callable

from fermata.foundation.refusals import refuse
from fermata.foundation.user_code import import_function

Penalty = Callable[[float], float]
"""A function of lateness x = (e - d) / d, above 0 and at most 1, with e and d counted from the
request's arrival (SneakPeek section 6.1). 0 costs nothing, 1 everything."""

CHECKED = 64
"""Points at which a penalty of the user's own is tried before it is used."""


def step(lateness: float) -> float:
    """Late is worthless."""
    return 1.0


def linear(lateness: float) -> float:
    """Worthless once it takes twice its time. The paper prints max(1, x), by which every late
    request would cost 1 or more; min(1, x) is meant."""
    return min(1.0, lateness)


def sigmoid(lateness: float) -> float:
    """1 / (1 + (x / (1 - x))^-3), and min for the printed max, as in `linear`."""
    if lateness >= 1.0:
        return 1.0
    # Products, not powers: this is the planner's innermost step.
    left = 1.0 - lateness
    late = lateness * lateness * lateness
    return late / (late + left * left * left)


PENALTIES: dict[str, Penalty] = {"step": step, "linear": linear, "sigmoid": sigmoid}


def load_penalty(where: str, name: str) -> Penalty:
    """A penalty by name, or by `module:function`; a ConfigError in one line where it is none."""
    if name in PENALTIES:
        return PENALTIES[name]
    if ":" not in name:
        refuse(where, name, f"must be {', '.join(PENALTIES)} or module:function")
    try:
        own: Penalty = import_function(name)
    except (ImportError, AttributeError) as error:
        refuse(where, name, f"cannot be imported ({error})")
    before = 0.0
    for point in range(1, CHECKED + 1):
        lateness = point / CHECKED
        cost = own(lateness)
        if not isinstance(cost, int | float) or not before <= cost <= 1.0:
            rule = f"must rise within 0 to 1, gives {cost!r} at a lateness of {lateness:g}"
            refuse(where, name, rule)
        before = float(cost)
    return own
