"""Policies that choose without looking take a better variant where a request's content is known."""

import random
from functools import partial

import pytest

from fermata.foundation.units import ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Request
from fermata.router.core.slot import Slot
from fermata.router.core.source import Source
from fermata.router.policies.content_upgrade import suited
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import DeferredOptions
from fermata.router.policies.family import family_of
from fermata.router.policies.jellyfish.options import JellyfishOptions
from fermata.router.policies.jellyfish.source import Jellyfish
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.source import Ramsis

FAST, TWIN, SLOW = 0, 1, 2
"""The second is as fast as the first."""
TASK = partial(family_of, 0, "task", ms(100), (FAST, TWIN, SLOW), FAST)
FAMILY = TASK((0.8, 0.85, 0.9), (8, 8, 8))
KNOWN = (0.2, 0.9, 1.0)
"""What is known of a request: the profile's order does not hold for it."""


def costs() -> Costs:
    made = Costs()
    for variant, each in ((FAST, 10), (TWIN, 10), (SLOW, 40)):
        made.add(variant, [ms(each), ms(2 * each)])
    return made


def request(rid: int = 0, accuracies: tuple[float, ...] | None = None) -> Request:
    made = Request(rid, 0, 0, ms(100))
    made.accuracies = accuracies
    return made


def slot(resident: frozenset[int] | None = None) -> Slot:
    made = Slot(costs())
    made.resident = resident
    return made


def sent(source: Source, accuracies: tuple[float, ...] | None) -> int:
    """On which variant a request runs whose content is known before it is sent."""
    engine = Engine(costs())
    engine.add_application(source)
    engine.on_backend_up(0, 0, owner=0 if source.owns_backends else None)
    engine.on_request(0, request(0, accuracies))
    for now_ns in range(0, ms(100), ms(1)):
        engine.on_time(now_ns)
        for effect in engine.take_effects():
            if isinstance(effect, Dispatch):
                return effect.batch.variant
    raise AssertionError("nothing was sent")


POLICIES = {
    "deferred": lambda: ModelThread(FAST, DeferredOptions(), FAMILY),
    "ramsis": lambda: Ramsis(FAMILY, RamsisOptions()),
    "jellyfish": lambda: Jellyfish(FAMILY, JellyfishOptions(), random.Random(0)),
}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_policy_takes_what_suits_a_request_better_and_takes_no_longer(policy: str) -> None:
    assert sent(POLICIES[policy](), None) == FAST
    assert sent(POLICIES[policy](), KNOWN) == TWIN
    assert sent(POLICIES[policy](), (0.9, 0.8, 1.0)) == FAST


def test_slower_variant_is_never_taken() -> None:
    assert suited(FAMILY, slot(), FAST, [request(0, (0.1, 0.1, 1.0))]) == FAST
    assert suited(FAMILY, slot(), SLOW, [request(0, (0.1, 0.6, 0.5))]) == TWIN


def test_profile_speaks_for_those_of_whom_nothing_is_known() -> None:
    # 0.8 + 0.8 on the first, 0.85 + 0.7 on the second.
    assert suited(FAMILY, slot(), FAST, [request(0), request(1, (0.8, 0.7, 1.0))]) == FAST
    assert suited(FAMILY, slot(), FAST, [request(0), request(1, (0.8, 0.8, 1.0))]) == TWIN


def test_floors_clients_inputs_and_memory_are_heeded() -> None:
    floored = TASK((0.9, 0.7, 0.9), (8, 8, 8), accuracy_floor=0.8)
    assert suited(floored, slot(), FAST, [request(0, KNOWN)]) == FAST
    other_input = TASK((0.8, 0.85, 0.9), (8, 16, 16))
    assert suited(other_input, slot(), FAST, [request(0, KNOWN)]) == FAST
    assert suited(FAMILY, slot(frozenset((FAST,))), FAST, [request(0, KNOWN)]) == FAST
    constrained = request(0, KNOWN)
    constrained.allowed = frozenset((FAST, SLOW))
    assert suited(FAMILY, slot(), FAST, [constrained]) == FAST
