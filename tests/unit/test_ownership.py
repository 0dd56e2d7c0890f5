"""Backends and the policies that need some of their own."""

from dataclasses import replace

import pytest

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.ownership import Ownership
from fermata.router.policies.sneakpeek.classes import Classes


def application(name: str, policy: str = "", share: float = 1.0) -> ApplicationSpec:
    variant = VariantSpec(f"{name}-model", (ms(5), ms(6)))
    return ApplicationSpec(name, ms(50), (variant,), policy=policy, backend_share=share)


def test_backends_are_given_by_share() -> None:
    ownership = Ownership({None: 3.0, 7: 1.0})
    owners = [ownership.take(backend) for backend in range(8)]
    assert owners.count(None) == 6
    assert owners.count(7) == 2


def test_the_successor_of_a_lost_backend_goes_to_whoever_misses_it() -> None:
    ownership = Ownership({None: 1.0, 0: 1.0})
    owners = {backend: ownership.take(backend) for backend in range(4)}
    lost = next(backend for backend, owner in owners.items() if owner == 0)
    ownership.release(lost)
    assert ownership.take(9) == 0


def test_a_single_pool_takes_every_backend() -> None:
    built = assemble(RouterConfig((application("a"), application("b"))))
    assert {built.ownership.take(backend) for backend in range(3)} == {None}


def test_each_application_may_have_its_own_policy() -> None:
    applications = (
        application("pooled"),
        application("alone", policy="timeout"),
        application("too", policy="timeout"),
    )
    built = assemble(RouterConfig(applications))
    sources = built.engine.sources
    assert sources[1] is sources[2]
    assert sources[0] is not sources[1]
    assert sorted(str(built.ownership.take(backend)) for backend in range(3)) == ["1", "1", "None"]


def test_an_unknown_policy_of_an_application_is_refused() -> None:
    with pytest.raises(ConfigError, match="policy='lottery' is unknown; one of deferred"):
        assemble(RouterConfig((application("a", policy="lottery"),)))


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="share=0; must be above 0"):
        assemble(RouterConfig((application("a", share=0),)))


def test_a_floor_that_no_variant_reaches_is_refused() -> None:
    variant = VariantSpec("v", (ms(5),), accuracy=0.8)
    one = ApplicationSpec("a", ms(50), (variant,), policy="central-queue", accuracy_floor=0.9)
    with pytest.raises(ConfigError, match=r"accuracy_floor=0.9 is above 0.8, its best variant's"):
        assemble(RouterConfig((one,)))


def test_a_floor_that_no_variants_recalls_reach_is_refused() -> None:
    for accuracy in (0.8, None):
        variant = VariantSpec("v", (ms(5),), accuracy=accuracy)
        one = ApplicationSpec(
            "a",
            ms(50),
            (variant,),
            policy="central-queue",
            accuracy_floor=0.9,
            classes=Classes(recall=((0.7, 0.9),)),
        )
        with pytest.raises(ConfigError, match=r"accuracy_floor=0.9 is above 0.8, its best"):
            assemble(RouterConfig((one,)))


def test_a_floor_above_the_variant_that_is_pinned_is_refused() -> None:
    variants = (
        VariantSpec("small", (ms(5),), accuracy=0.7),
        VariantSpec("large", (ms(9),), accuracy=0.9),
    )
    one = ApplicationSpec("a", ms(50), variants, accuracy_floor=0.8)
    with pytest.raises(ConfigError, match=r"accuracy_floor=0.8 is above 0.7 of 'small', which is"):
        assemble(RouterConfig((one,), "central-queue", {"pinned": True}))
    assemble(RouterConfig((replace(one, serving="large"),), "central-queue", {"pinned": True}))
    assemble(RouterConfig((one,), "central-queue"))


def test_a_floor_above_the_one_variant_that_runs_is_refused() -> None:
    variants = (
        VariantSpec("small", (ms(5),), accuracy=0.7),
        VariantSpec("large", (ms(9),), accuracy=0.9),
    )
    one = ApplicationSpec("a", ms(50), variants, accuracy_floor=0.8)
    with pytest.raises(ConfigError, match=r"'a': accuracy_floor=0.8, but 'small' has 0.7 and pol"):
        assemble(RouterConfig((one,)))
    assemble(RouterConfig((replace(one, serving="large"),)))
    assemble(RouterConfig((replace(one, policy="central-queue"),)))


def test_a_floor_that_nobody_can_judge_is_refused() -> None:
    one = replace(application("a"), accuracy_floor=0.8)
    with pytest.raises(ConfigError, match=r"accuracy_floor=0.8, but 'a-model' has no accuracy"):
        assemble(RouterConfig((one,)))
    known = replace(one, classes=Classes(recall=((0.7, 0.9),)))
    assemble(RouterConfig((known,)))
