"""The default policy: which one serves an application, and what is said where one variant does."""

import logging
from dataclasses import replace

import pytest

from fermata.applications.accuracy_goal import chooses
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import NEVER, ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.source import Source
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.auto import notes
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.lookahead.source import LookaheadQueue
from fermata.simulator.scenario.scenario import read_scenario

FAST = VariantSpec("fast", (ms(1), ms(1.2)), accuracy=0.6)
SLOW = VariantSpec("slow", (ms(4), ms(5)), accuracy=0.8)
SEVERAL = ApplicationSpec("cats", ms(20), (FAST, SLOW))
ONE = replace(SEVERAL, variants=(SLOW,))
SET = replace(SEVERAL, serving="slow")
UNKNOWN = replace(SEVERAL, variants=(FAST, replace(SLOW, accuracy=None)))


def source(application: ApplicationSpec, **options: object) -> Source:
    (found,) = assemble(RouterConfig((application,), "auto", options)).engine.sources
    return found


@pytest.mark.parametrize(
    ("application", "expected"),
    [(SEVERAL, LookaheadQueue), (ONE, ModelThread), (SET, ModelThread), (UNKNOWN, ModelThread)],
)
def test_variants_are_chosen_where_nothing_speaks_against_it(
    application: ApplicationSpec, expected: type[Source]
) -> None:
    assert type(source(application)) is expected
    (default,) = assemble(RouterConfig((application,))).engine.sources
    assert type(default) is expected


def test_the_reason_why_one_variant_serves_is_a_sentence() -> None:
    told = [notes((each,), "auto") for each in (SEVERAL, ONE, SET, UNKNOWN)]
    assert told == [
        [],
        [],
        ["cats sets serving, so policy auto serves slow alone."],
        ["The accuracy of variant slow of cats is unknown, so policy auto serves fast alone."],
    ]
    assert notes((SET, UNKNOWN), "deferred") == []
    assert len(notes((replace(SET, policy="auto"),), "deferred")) == 1


class NoTimer:
    def set(self, at_ns: int) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_live_router_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fermata"):
        LiveRouter(RouterConfig((SET,)), 1, lambda: 0, lambda call: None, lambda call: NoTimer())
    assert "cats sets serving, so policy auto serves slow alone." in caplog.messages


def test_options_reach_the_policy_that_serves() -> None:
    one, several = source(ONE, hold="auto"), source(SEVERAL, hold="auto", hold_ms_max=3)
    assert isinstance(one, ModelThread)
    assert isinstance(several, LookaheadQueue)
    assert one.options.hold == "auto"
    assert one.options.hold_ns_max == NEVER
    assert several.options.hold_ns_max == ms(3)
    eager = source(SEVERAL, hold="eager")
    assert isinstance(eager, LookaheadQueue)
    assert eager.options.hold == "eager"
    with pytest.raises(ConfigError, match="unknown option of auto"):
        served(policy="auto", policy_options={"drop_window": 1.0})


def test_automatic_and_named_applications_share_one_market() -> None:
    named = replace(SEVERAL, name="dogs", policy="lookahead")
    one, other = assemble(RouterConfig((SEVERAL, named), "auto", {"hold": "auto"})).engine.sources
    assert isinstance(one, LookaheadQueue)
    assert isinstance(other, LookaheadQueue)
    assert one.market is other.market


def row(**more: object) -> dict[str, object]:
    variants = [
        {"name": "fast", "alpha_ms": 0.2, "beta_ms": 1, "accuracy": 0.6},
        {"name": "slow", "alpha_ms": 1, "beta_ms": 4, "accuracy": 0.8},
    ]
    return {"name": "cats", "slo_ms": 40, "variants": variants, **more}


def served(**router: object) -> RouterConfig:
    config = read_config(
        {"applications": [row()], "router": router} if router else {"applications": [row()]}
    )
    return router_config(config, known_profiles(config))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "auto"),
        ({"policy_options": {"hold": "eager"}}, "deferred"),
        ({"policy": "auto", "policy_options": {"hold": "eager"}}, "auto"),
        ({"policy": "deferred"}, "deferred"),
    ],
)
def test_both_kinds_of_file_have_the_same_default(given: JsonObject, expected: str) -> None:
    scenario = {"backends": 1, "rate_rps": 10, "applications": [row()], **given}
    assert read_scenario(scenario).policy == expected
    assert served(**given).policy == expected


def test_a_served_fleet_of_fixed_size_holds_as_goodput_asks() -> None:
    assert served().policy_options == {"hold": "auto"}


def test_an_accuracy_can_be_held_where_variants_are_chosen() -> None:
    (several,) = read_scenario(
        {"backends": 1, "rate_rps": 10, "applications": [row()]}
    ).applications
    assert chooses(several, "auto", {})
    assert not chooses(replace(several, serving="fast"), "auto", {})
    assert not chooses(replace(several, variants=several.variants[:1]), "auto", {})
