"""Recall floors hold under every policy that chooses, also where nothing is known of a request."""

import random
from collections.abc import Callable

import pytest

from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import Source
from fermata.router.policies.baselines.load_granular import JellyfishPlusOptions, LoadGranular
from fermata.router.policies.central.options import CentralOptions
from fermata.router.policies.central.source import CentralQueue
from fermata.router.policies.content_upgrade import suited
from fermata.router.policies.family import Family, family_of
from fermata.router.policies.jellyfish.options import JellyfishOptions
from fermata.router.policies.jellyfish.source import Jellyfish
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.source import Ramsis
from fermata.router.policies.routing.mix import read_mix
from fermata.router.policies.sneakpeek.classes import Classes

FAST, SURE, TWIN = 0, 1, 2
"""The first is more accurate on the whole and faster, but finds one in ten of the second class."""
RECALL = ((1.0, 0.1), (0.7, 0.85), (0.6, 0.1))
FLOORED = Classes(recall=RECALL, recall_floors=(0.0, 0.8))
SIZES = (8, 8, 8)


def family(
    classes: Classes | None = FLOORED, accuracy: tuple[float, ...] = (0.9, 0.7, 0.6)
) -> Family:
    return family_of(0, "task", ms(100), (FAST, SURE, TWIN), FAST, accuracy, SIZES, 0.0, classes)


def costs() -> Costs:
    made = Costs()
    for variant, each in ((FAST, 10), (SURE, 20), (TWIN, 20)):
        made.add(variant, [ms(each), ms(2 * each)])
    return made


def request(accuracies: tuple[float, ...] | None = None) -> Request:
    made = Request(0, 0, SECOND, SECOND + ms(100))
    made.accuracies = accuracies
    return made


POLICIES: dict[str, Callable[[Family], Source]] = {
    "central-queue": lambda of: CentralQueue(of, CentralOptions()),
    "ramsis": lambda of: Ramsis(of, RamsisOptions()),
    "jellyfish-plus": lambda of: LoadGranular(of, JellyfishPlusOptions()),
    "jellyfish": lambda of: Jellyfish(of, JellyfishOptions(), random.Random(0)),
}


def sent(source: Source) -> int:
    """On which variant a request runs of which nothing is known."""
    engine = Engine(costs())
    engine.add_application(source)
    engine.on_backend_up(0, 0, owner=0 if source.owns_backends else None)
    engine.on_request(SECOND, request())
    (batch,) = [each.batch for each in engine.take_effects() if isinstance(each, Dispatch)]
    return batch.variant


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_variant_below_a_recall_floor_is_not_chosen(policy: str) -> None:
    assert sent(POLICIES[policy](family(None))) == FAST
    assert sent(POLICIES[policy](family())) == SURE


def test_floors_that_no_variant_keeps_all_of_leave_what_the_accuracy_floor_does() -> None:
    torn = Classes(recall=RECALL, recall_floors=(0.9, 0.8))
    assert family(torn).choices() == [FAST, SURE, TWIN]


def test_instances_are_of_variants_that_keep_the_floors() -> None:
    assert read_mix("", family(None), (1, 2, 2)) == (1, 0, 0)
    assert read_mix("", family(), (1, 2, 2)) == (0, 1, 0)


def test_content_lets_a_weak_variant_run_only_where_it_rules_the_class_out() -> None:
    slot = Slot(costs())
    # Of the first nothing is known; the second may be of the class, the third is not.
    for known, variant in ((None, SURE), ((0.0, 0.5, 0.0), SURE), ((0.99, 0.7, 0.9), FAST)):
        assert suited(family(), slot, SURE, [request(known)]) == variant
    assert suited(family(), slot, SURE, [request(), request((0.99, 0.7, 0.9))]) == SURE


def test_policy_without_choice_takes_a_variant_that_keeps_the_floor_and_takes_no_longer() -> None:
    slot = Slot(costs())
    assert suited(family(None), slot, TWIN, [request()]) == TWIN
    assert suited(family(), slot, TWIN, [request()]) == SURE
