"""Jellyfish+ and ModelSwitching: the variant follows the load."""

import pytest

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import SECOND, ms
from fermata.router.core.costs import Costs
from fermata.router.core.engine import Engine
from fermata.router.core.events import Dispatch, Request
from fermata.router.policies.baselines.load_granular import (
    JellyfishPlusOptions,
    LoadGranular,
    ModelSwitchingOptions,
)
from fermata.router.policies.catalog import build_sources
from fermata.router.policies.family import family_of
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.source import Ramsis

FAST, MIDDLE, GOOD = 0, 1, 2
SLO_NS = ms(100)
FAMILY = family_of(0, "task", SLO_NS, (FAST, MIDDLE, GOOD), FAST, (0.6, 0.7, 0.8))


def chosen(
    options: JellyfishPlusOptions | ModelSwitchingOptions, backends: int = 2, owned: int = 0
) -> int:
    """The variant that a request gets; `owned` backends belong to another application."""
    costs = Costs()
    costs.add(FAST, [ms(10), ms(20), ms(30), ms(40)])
    costs.add(MIDDLE, [ms(20), ms(40), ms(60)])
    costs.add(GOOD, [ms(60), ms(90)])
    engine = Engine(costs)
    engine.add_application(LoadGranular(FAMILY, options))
    engine.add_application(Ramsis(FAMILY, RamsisOptions()))
    for backend in range(backends + owned):
        engine.on_backend_up(0, backend, owner=None if backend < backends else 1)
    engine.on_request(SECOND, Request(0, 0, SECOND, SECOND + SLO_NS))
    (effect,) = engine.take_effects()
    assert isinstance(effect, Dispatch)
    return effect.batch.variant


def test_jellyfish_plus_wants_throughput_and_half_the_slo() -> None:
    # The good variant needs 60 of 100 ms: more than half, at any load. The middle one does 50 a
    # second on each of two backends, 5 % less than which is 95.2.
    assert chosen(JellyfishPlusOptions(load_rps=95.0)) == MIDDLE
    assert chosen(JellyfishPlusOptions(load_rps=96.0)) == FAST
    assert chosen(JellyfishPlusOptions(load_rps=9999.0)) == FAST


def test_backends_that_others_own_are_not_counted_on() -> None:
    assert chosen(JellyfishPlusOptions(load_rps=96.0), backends=3) == MIDDLE
    assert chosen(JellyfishPlusOptions(load_rps=96.0), backends=2, owned=1) == FAST


def test_model_switching_wants_a_measured_latency() -> None:
    sustained = (500.0, 90.0, 20.0)
    for load_rps, variant in ((20.0, GOOD), (21.0, MIDDLE), (91.0, FAST), (600.0, FAST)):
        options = ModelSwitchingOptions(load_rps=load_rps, sustained_rps=sustained)
        assert chosen(options) == variant


def test_model_switching_has_to_be_told_every_variant() -> None:
    import random

    with pytest.raises(ConfigError, match="each of 3 variants"):
        build_sources("model-switching", {"sustained_rps": [1, 2]}, [FAMILY], random.Random(0))


def test_the_accuracy_floor_holds_for_baselines_too() -> None:
    costs = Costs()
    for variant in (FAST, MIDDLE, GOOD):
        costs.add(variant, [ms(10 * (variant + 1))])
    family = family_of(0, "task", SLO_NS, (FAST, MIDDLE, GOOD), FAST, (0.6, 0.7, 0.8), (), 0.65)
    engine = Engine(costs)
    engine.add_application(LoadGranular(family, JellyfishPlusOptions(load_rps=9999.0)))
    engine.on_backend_up(0, 0)
    engine.on_request(SECOND, Request(0, 0, SECOND, SECOND + SLO_NS))
    (effect,) = engine.take_effects()
    assert isinstance(effect, Dispatch)
    assert effect.batch.variant == MIDDLE
