"""Slot routing on a real engine: heavy takes 40 ms for a request, light 10 ms."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Drop, DropReason, Request
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.catalog import build_sources, read_options
from fermata.router.policies.family import Family, family_of
from fermata.router.policies.rl.batching import LIMITS, batch_size
from fermata.router.policies.rl.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fermata.router.policies.rl.load_range import LoadRange
from fermata.router.policies.rl.network import PolicyNetwork
from fermata.router.policies.rl.observation import (
    Floats,
    InstanceStates,
    Memory,
    Scales,
    encode,
    width,
)
from fermata.router.policies.rl.options import SlotRoutingOptions
from fermata.router.policies.rl.sampling import even_draw
from fermata.router.policies.rl.slot_routing import SlotRouting

HEAVY, LIGHT = 0, 1
FAMILY = family_of(0, "vision", ms(300), (HEAVY, LIGHT), HEAVY, accuracy=(0.83, 0.78))
FAMILY_NAMED = Family(
    0,
    ApplicationSpec(
        "vision",
        ms(300),
        (VariantSpec("heavy", accuracy=0.83), VariantSpec("light", accuracy=0.78)),
    ),
    (HEAVY, LIGHT),
)
SCALES = Scales(buffer=3, slo_ns=ms(300))


def policy(
    scores: Sequence[float], limits: Sequence[tuple[int, int]] = (), high: float = 100.0
) -> Checkpoint:
    """A checkpoint that always gives these scores, and these limits by tier."""
    outputs = list(scores)
    for limit in limits:
        outputs.extend(10.0 if each == limit else 0.0 for each in LIMITS)
    inputs = width(2, SCALES)
    network = PolicyNetwork((np.zeros((inputs, len(outputs))),), (np.array(outputs, np.float64),))
    return Checkpoint(
        network,
        tiers=(HEAVY, LIGHT),
        scales=SCALES,
        slot_ns=SECOND,
        low=np.zeros(inputs),
        high=np.full(inputs, high),
        batching=bool(limits),
    )


NAMED = {"variants": ("heavy", "light"), "rates_rps": (10.0, 180.0)}


def swapped() -> Family:
    """The family with its two lines in the other order."""
    rows = (VariantSpec("light", accuracy=0.78), VariantSpec("heavy", accuracy=0.83))
    return Family(0, ApplicationSpec("vision", ms(300), rows), (LIGHT, HEAVY))


def make(
    checkpoint: Checkpoint | None, backends: int = 2, family: Family = FAMILY
) -> tuple[Engine, SlotRouting]:
    costs = Costs()
    costs.add(HEAVY, [ms(24 + 16 * size) for size in range(1, 6)])
    costs.add(LIGHT, [ms(4 + 6 * size) for size in range(1, 6)])
    engine = Engine(costs)
    options = SlotRoutingOptions(buffer=3, reserve=0.0)
    source = SlotRouting(family, options, checkpoint, Random(1))
    engine.add_application(source)
    for backend in range(backends):
        engine.on_backend_up(0, backend, owner=0)
    return engine, source


def send(engine: Engine, rid: int, at_ns: int) -> None:
    engine.on_request(at_ns, Request(rid, 0, at_ns, at_ns + ms(300), at_ns + 10 * SECOND))


def effects(engine: Engine) -> list[tuple[int, int | str]]:
    seen: list[tuple[int, int | str]] = []
    for effect in engine.take_effects():
        if isinstance(effect, Dispatch):
            seen.extend((request.rid, effect.batch.variant) for request in effect.batch.requests)
        elif isinstance(effect, Drop):
            seen.append((effect.request.rid, effect.reason))
    return seen


def test_requests_are_drawn_by_the_shares() -> None:
    engine, source = make(policy([np.log(0.2), np.log(0.8)]))
    assert source.instances.ordered[HEAVY].tier == HEAVY
    drawn = [0, 0]
    for rid in range(2000):
        at_ns = rid * ms(50)
        while engine.wake_at_ns() <= at_ns:
            engine.on_time(engine.wake_at_ns())
        send(engine, rid, at_ns)
        for effect in engine.take_effects():
            if isinstance(effect, Dispatch):
                drawn[effect.batch.variant] += 1
                engine.on_done(at_ns, effect.backend, ms(1))
    assert sum(drawn) == 2000
    assert drawn[HEAVY] / 2000 == pytest.approx(0.2, abs=0.03)


def test_draws_are_even_over_every_stretch() -> None:
    draws = even_draw(0.3, np.arange(1000))
    assert draws[7] == even_draw(0.3, 7)
    for start in (0, 137, 800):
        hits = ((draws[start : start + 100] >= 0.2) & (draws[start : start + 100] < 0.3)).sum()
        assert abs(hits - 10) <= 1
    # Visits to a tenth are 8, 13 or 21 requests apart: consecutive Fibonacci numbers.
    assert set(np.diff(np.flatnonzero((draws >= 0.2) & (draws < 0.3))).tolist()) <= {5, 8, 13, 21}


def test_a_full_buffer_refuses_whoever_is_drawn_to_it() -> None:
    engine, _ = make(policy([30.0, 0.0]))
    for rid in range(4):
        send(engine, rid, 0)
    assert effects(engine) == [(0, HEAVY), (3, DropReason.FULL)]


def test_late_requests_are_served_until_their_hard_limit() -> None:
    engine, _ = make(policy([30.0, 0.0]))
    for rid in range(2):
        send(engine, rid, 0)
    engine.on_done(ms(400), 1, ms(400))
    assert effects(engine) == [(0, HEAVY), (1, HEAVY)]


def test_falls_back_without_the_instances_it_was_trained_for() -> None:
    engine, source = make(policy([30.0, 0.0]), backends=3)
    assert tuple(each.tier for each in source.instances.ordered) == (HEAVY, LIGHT, LIGHT)
    for rid in range(4):
        send(engine, rid, 0)
    # Deadline-aware: three to heavy, whose buffer is full then, the fourth to light.
    assert effects(engine) == [(0, HEAVY), (3, LIGHT)]
    engine.on_backend_down(ms(10), source.instances.ordered[2].backend)
    assert source.aware
    engine.on_time(SECOND)
    assert not source.aware
    assert (source.slots, source.slots_fallen_back) == (2, 1)


def test_an_instance_that_dies_ends_the_slot_s_shares_at_once() -> None:
    engine, source = make(policy([30.0, 0.0]))
    send(engine, 0, 0)
    send(engine, 1, 0)
    assert not source.aware
    engine.on_backend_down(ms(10), 1)
    assert source.aware
    # What ran there is tried again alone, as it was; what waited there goes where it is served now.
    assert effects(engine) == [(0, HEAVY), (1, LIGHT)]
    engine.on_done(ms(20), 0, ms(10))
    assert effects(engine) == [(0, HEAVY)]


def test_falls_back_where_training_has_never_been() -> None:
    engine, source = make(policy([30.0, 0.0], high=0.0))
    send(engine, 0, 0)
    assert not source.aware
    send(engine, 1, ms(990))
    engine.on_time(SECOND)
    assert source.aware


def test_the_slot_timer_rests_while_nothing_happens() -> None:
    engine, source = make(policy([30.0, 0.0]))
    send(engine, 0, ms(100))
    engine.on_done(ms(140), 1, ms(40))
    assert engine.wake_at_ns() == SECOND
    engine.on_time(SECOND)
    engine.on_time(2 * SECOND)
    assert not source.ticking
    send(engine, 1, 7 * SECOND + 1)
    engine.on_done(7 * SECOND + ms(40), 1, ms(40))
    assert engine.wake_at_ns() == 8 * SECOND


def test_a_slot_ends_with_a_request_that_comes_before_the_timer() -> None:
    engine, source = make(policy([30.0, 0.0]))
    send(engine, 0, ms(100))
    send(engine, 1, SECOND + ms(1))
    assert (source.slots, source.arrivals) == (2, 1)
    engine.on_time(SECOND + ms(2))
    assert (source.slots, engine.wake_at_ns()) == (2, 2 * SECOND)


def test_what_slots_began_with_is_remembered() -> None:
    memory = Memory(slots=3)
    first, second, third, fourth = (np.array([float(each)]) for each in range(4))
    assert memory.recall(first).tolist() == [0, 0, 0]
    memory.keep(first)
    assert memory.recall(second).tolist() == [1, 0, 0]
    memory.keep(second)
    memory.keep(third)
    assert memory.recall(fourth).tolist() == [3, 2, 1]
    memory.forget()
    assert memory.recall(fourth).tolist() == [3, 3, 3]


def test_slots_in_which_nothing_happened_are_remembered_as_empty() -> None:
    inputs = width(2, replace(SCALES, memory=2))
    seen: list[list[float]] = []

    class Listening:
        def __call__(self, observation: Floats) -> Floats:
            seen.append(observation.tolist())
            return np.array([30.0, 0.0])

    checkpoint = replace(
        policy([30.0, 0.0]),
        network=Listening(),
        scales=replace(SCALES, memory=2),
        low=np.zeros(inputs),
        high=np.full(inputs, 100.0),
    )
    engine, _ = make(checkpoint)
    lengths = slice(0, None, inputs // 2)
    send(engine, 0, ms(999))
    engine.on_time(SECOND)
    engine.on_done(SECOND + ms(39), 1, ms(40))
    engine.on_time(2 * SECOND)
    engine.on_time(3 * SECOND)
    send(engine, 1, 7 * SECOND)
    assert [each[lengths] for each in seen] == [
        pytest.approx([now, before]) for now, before in ((0, 0), (1 / 3, 0), (0, 1 / 3), (0, 0))
    ]


def test_a_batch_waits_for_its_smallest_size() -> None:
    engine, _ = make(policy([30.0, 0.0], [(3, 5), (1, 1)]))
    send(engine, 0, 0)
    send(engine, 1, ms(1))
    assert effects(engine) == []
    send(engine, 2, ms(2))
    assert effects(engine) == [(0, HEAVY), (1, HEAVY), (2, HEAVY)]


@pytest.mark.parametrize(
    ("waiting", "limits", "size"),
    [
        (1, (1, 1), 1),
        (4, (1, 5), 3),
        (9, (1, 5), 5),
        (2, (3, 5), 0),
        (4, (3, 3), 3),
        (7, (5, 5), 5),
    ],
)
def test_the_bulk_service_rule(waiting: int, limits: tuple[int, int], size: int) -> None:
    assert batch_size(waiting, limits) == size
    arrays = (np.array([limits[0]]), np.array([limits[1]]))
    assert batch_size(np.array([waiting]), arrays).tolist() == [size]


def test_an_observation_is_of_about_one() -> None:
    zero = np.zeros(2)
    states = InstanceStates(np.array([3.0, 0.0]), zero, np.array([ms(75.0), 0.0]), zero)
    seen = encode(states, np.array(90.0), Scales(3, ms(300), arrivals=180.0))
    # Length, five marks, elapsed, oldest, youngest, each by instance, and the arrivals.
    expected = [1, 0, *[1, 0] * 3, *[0, 0] * 2, 0, 0, 1, 0, 0, 0, 0.5]
    assert seen.tolist() == expected
    assert len(seen) == width(2, Scales(3, ms(300), arrivals=180.0))


def test_a_checkpoint_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    saved = policy([0.5, -0.5], [(1, 5), (3, 3)])
    save_checkpoint(saved, path)
    read = load_checkpoint(path)
    decision = read.decide(np.zeros(width(2, SCALES)))
    assert decision.limits == ((1, 5), (3, 3))
    assert decision.shares.tolist() == pytest.approx([0.7311, 0.2689], abs=1e-4)
    assert (read.tiers, read.scales, read.slot_ns) == (saved.tiers, SCALES, SECOND)


def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_checkpoint(tmp_path / "none.json")
    path = tmp_path / "policy.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="format"):
        load_checkpoint(path)
    save_checkpoint(policy([1.0, 2.0]), path)
    path.write_text(path.read_text().replace('"tiers": [0, 1]', '"tiers": [0, 1, 1]'))
    with pytest.raises(ConfigError, match="do not fit"):
        load_checkpoint(path)
    save_checkpoint(policy([1.0, 2.0]), path)
    path.write_text(path.read_text().replace('"memory": 1, ', ""))
    with pytest.raises(ConfigError, match="lacks 'memory'"):
        load_checkpoint(path)
    save_checkpoint(policy([1.0, 2.0]), path)
    one = family_of(0, "vision", ms(300), (HEAVY,), HEAVY, accuracy=(0.83,))
    with pytest.raises(ConfigError, match="more variants than the 1 of vision"):
        build_sources("rl", {"checkpoint": str(path)}, [one], Random(1))
    with pytest.raises(ConfigError, match="checkpoint"):
        read_options("rl", {})


def test_shares_are_those_of_the_instances_that_a_client_s_floor_leaves() -> None:
    engine, source = make(policy([30.0, 0.0]))
    for rid, allowed in enumerate(({LIGHT}, {HEAVY}, {LIGHT, HEAVY}, {7})):
        request = Request(rid, 0, 0, ms(300), 10 * SECOND)
        request.allowed = frozenset(allowed)
        engine.on_request(0, request)
    assert not source.aware
    assert effects(engine) == [(0, LIGHT), (1, HEAVY), (3, DropReason.FLOOR)]


# Variants and loads of its training


def test_variants_are_known_by_name_whatever_their_order() -> None:
    checkpoint = replace(policy([30.0, 0.0], [(3, 5), (1, 1)]), **NAMED)
    engine, source = make(checkpoint, family=swapped())
    for rid in range(4):
        send(engine, rid, ms(rid))
    assert not source.aware
    # All go to heavy, the policy's first instance, and wait there for a batch of three.
    dropped = (3, DropReason.FULL)
    assert effects(engine) == [(0, HEAVY), (1, HEAVY), (2, HEAVY), dropped]


def test_the_policy_sees_its_instances_in_its_own_order() -> None:
    checkpoint = replace(policy([0.0, 30.0]), **NAMED)
    for family in (FAMILY_NAMED, swapped()):
        engine, source = make(checkpoint, family=family)
        send(engine, 0, 0)
        assert effects(engine) == [(0, LIGHT)]
        assert source._states(ms(1)).length.tolist() == [0.0, 1.0]


def test_a_variant_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    save_checkpoint(replace(policy([1.0, 2.0]), **NAMED), path)
    assert load_checkpoint(path).variants == ("heavy", "light")
    assert load_checkpoint(path).rates_rps == (10.0, 180.0)
    build_sources("rl", {"checkpoint": str(path)}, [swapped()], Random(1))
    rule = "was trained for a variant 'heavy', and vision has 0, 1; rename one"
    with pytest.raises(ConfigError, match=rule):
        build_sources("rl", {"checkpoint": str(path)}, [FAMILY], Random(1))


def test_files_that_know_neither_names_nor_loads_are_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    save_checkpoint(policy([1.0, 2.0]), path)
    text = path.read_text().replace('"variants": [], "rates_rps": [], ', "")
    assert "variants" not in text
    path.write_text(text)
    build_sources("rl", {"checkpoint": str(path)}, [FAMILY], Random(1))


@pytest.mark.parametrize(
    ("rate_rps", "off"),
    [(10, False), (180, False), (150, False), (60, True), (30, True), (1, True)],
)
def test_a_load_that_it_was_not_trained_for_is_routed_by_rule(rate_rps: int, off: bool) -> None:
    engine, source = make(replace(policy([0.0, 30.0]), **NAMED), family=FAMILY_NAMED)
    for rid in range(20 * rate_rps):
        at_ns = rid * SECOND // rate_rps
        while engine.wake_at_ns() <= at_ns:
            engine.on_time(engine.wake_at_ns())
        send(engine, rid, at_ns)
        for effect in engine.take_effects():
            if isinstance(effect, Dispatch):
                engine.on_done(at_ns, effect.backend, ms(1))
    # The first two slots may be a change from one load to the other.
    assert source.describe()["slots_off_load"] == (source.slots - 2 if off else 0)
    assert source.slots_fallen_back == source.slots_off_load


@pytest.mark.parametrize("slot_ns", [ms(100), ms(500), SECOND, 3 * SECOND])
def test_a_change_of_load_is_no_foreign_load(slot_ns: int) -> None:
    load = LoadRange((10.0, 180.0), slot_ns)
    for rate_rps in (10, 180, 10, 180):
        for _ in range(40):
            load.note(rate_rps * slot_ns // SECOND)
            assert not load.foreign
        load.note((10 + 180) // 2 * slot_ns // SECOND)
        assert not load.foreign
    load.note(0, slots=1000)
    assert load.foreign
    load.note(180 * slot_ns // SECOND, slots=20)
    assert not load.foreign
