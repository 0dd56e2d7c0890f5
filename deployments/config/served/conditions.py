"""Conditions of stages as frontends ask them, checked against the models that are asked."""

import math
from collections.abc import Sequence

from fermata.deployments.config.conditions import NUMBERS, WhenConfig
from fermata.deployments.specs.pipelines import Condition, ServedStage
from fermata.deployments.specs.served_model import ServedModel
from fermata.foundation.errors import ConfigError


def condition_of(given: WhenConfig, names: Sequence[str]) -> Condition:
    """The condition with the place of the stage that it asks; `names`: those of all stages."""
    return Condition(
        names.index(given.stage) if given.stage else -1,
        tuple(map(str, given.classes)),
        -math.inf if given.score_min is None else given.score_min,
        math.inf if given.score_below is None else given.score_below,
        given.at_least,
        math.inf if given.found_max is None else given.found_max,
        given.scores,
        given.numbers,
    )


def check_condition_fits(
    where: str, before: ServedStage, asked: ServedStage, when: Condition, has_joins: bool
) -> None:
    """Refuse a condition that the stage which it asks cannot meet; `before` is that whose result
    comes."""
    check_classes(f"{where}: when", when.classes, asked.model)
    outputs = [each.name for each in asked.model.outputs]
    named = {"scores": when.scores, "numbers": when.numbers if when.numbers != NUMBERS else ""}
    for key, output in named.items():
        if output and outputs and output not in outputs:
            known = ", ".join(outputs)
            raise ConfigError(f"{where}: when.{key}={output!r} is unknown; one of {known}")
    # Beyond a join there may be several results, each with a class of its own.
    is_one = asked is before or not has_joins
    if asked.model.boxes is None and when.found_min > 1 and is_one:
        raise ConfigError(
            f"{where}: when.found_min={when.found_min}: {asked.name} finds one class for an input; "
            "ask a detector, or for 1"
        )


def check_classes(where: str, classes: Sequence[str], model: ServedModel) -> None:
    """Refuse classes that a model does not know."""
    count = len(model.labels)
    for each in classes:
        if each in model.labels or (each.isdigit() and (not count or int(each) < count)):
            continue
        known = ", ".join(model.labels[:10]) or "numbers alone"
        if each.isdigit():
            known = f"{known}, or a number below {count}"
        raise ConfigError(f"{where}.classes: {each!r} is unknown; one of {known}")
