"""A version on trial: who tries it, and when it is withdrawn."""

import random
from dataclasses import replace
from typing import Any

import pytest
from router_world import World
from snapshots import application, router, snapshot

from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.control.canaries import canaries
from fermata.deployments.specs.registry import UnloadedModelError
from fermata.deployments.specs.status import DeploymentStatus
from fermata.foundation.errors import ConfigError
from fermata.router.links.messages import Ready, Unavailable
from fermata.router.links.unavailability import UNLOADED, Unavailability, UnavailableCause
from fermata.router.telemetry.snapshot import RouterSnapshot


def entry(version: int, **more: Any) -> dict[str, Any]:
    variants = [{"name": f"m-{version}", "alpha_ms": 1, "beta_ms": 1}]
    return {"name": "m", "version": version, "slo_ms": 50, "variants": variants, **more}


def config(**canary: Any) -> Any:
    return read_config({"applications": [entry(1), entry(2, canary=canary)]})


def withdrawn(reason: str) -> Unavailability:
    return Unavailability(UnavailableCause.WITHDRAWN, reason)


def told(good: int, bad: int, term: int = 1, absent: tuple[str, ...] = ()) -> RouterSnapshot:
    outcomes = {"good": good, "failed": bad, "cancelled": 1000}
    trial = {"m@2": application(answered=outcomes)}
    return router(trial, term=term, absent=dict.fromkeys(absent, UNLOADED))


def test_a_share_of_those_who_name_no_version_try_it() -> None:
    models = registry(config(share=0.25))
    models.rng = random.Random(3)
    found = [models.find("m")[1] for _ in range(1000)]
    assert 200 < found.count("2") < 300
    assert models.find("m", "2")[1] == "2"
    assert models.find("m@1")[1] == "1"


def test_nobody_tries_what_is_withdrawn() -> None:
    models = registry(config(share=0.99))
    models.set_unavailable({"m@2": withdrawn("9 of 10 answers were bad")})
    assert {models.find("m")[1] for _ in range(100)} == {"1"}
    with pytest.raises(UnloadedModelError, match="9 of 10 answers were bad"):
        models.find("m", "2")


def test_alone_it_serves_everybody() -> None:
    models = registry(config(share=0.01))
    models.set_unavailable({"m@1": UNLOADED})
    assert {models.find("m")[1] for _ in range(100)} == {"2"}


def test_it_is_withdrawn_once_enough_answers_were_bad() -> None:
    trial = canaries(config(bad_rate_max=0.1, requests_min=50))
    assert trial.judge(told(0, 49)) == {}
    assert trial.judge(told(45, 5)) == {}
    found = trial.judge(told(44, 6))
    assert found == {"m@2": "6 of 50 answers were bad, more than bad_rate_max=0.1"}
    # It has not answered, and is told again.
    assert trial.judge(told(44, 7)) == found
    trial.on_told("m@2", term=1)
    assert trial.judge(told(44, 7)) == {}


def test_it_is_withdrawn_soon_although_it_was_good_for_long() -> None:
    trial = canaries(config(bad_rate_max=0.05, requests_min=100))
    for second in range(1000):
        assert trial.judge(told(100 * second, second)) == {}
    failed = 0
    while not (found := trial.judge(told(99_900, 999 + failed))):
        failed += 10
    assert failed < 150
    assert "of the last" in found["m@2"]


def test_it_is_withdrawn_where_it_becomes_a_little_too_bad() -> None:
    trial = canaries(config(bad_rate_max=0.05, requests_min=100))
    for second in range(600):
        assert trial.judge(told(100 * second, second)) == {}
    found = {}
    for second in range(120):
        found = found or trial.judge(told(60_000 + 90 * second, 600 + 10 * second))
    assert found


def test_chance_withdraws_nothing() -> None:
    trial, rng = canaries(config(bad_rate_max=0.05, requests_min=100)), random.Random(7)
    good = bad = 0
    for _ in range(20_000):
        failed = sum(rng.random() < 0.03 for _ in range(20))
        good, bad = good + 20 - failed, bad + failed
        assert trial.judge(told(good, bad)) == {}


def test_a_router_that_starts_anew_is_told_again() -> None:
    trial = canaries(config(requests_min=1))
    assert trial.judge(told(0, 5, term=1))
    trial.on_told("m@2", term=1)
    assert trial.judge(told(0, 5, term=1, absent=("m@2",))) == {}
    assert trial.judge(told(0, 0, term=2)) != {}


def test_a_router_that_comes_in_place_of_one_that_was_not_told_is_told() -> None:
    trial = canaries(config(requests_min=1))
    found = trial.judge(told(0, 5, term=1))
    assert found
    assert trial.judge(told(0, 0, term=2)) == found


def test_a_version_that_a_client_unloaded_is_not_judged() -> None:
    assert canaries(config(requests_min=1)).judge(told(0, 9, absent=("m@2",))) == {}


def test_a_canary_needs_a_version_to_fall_back_to() -> None:
    with pytest.raises(ConfigError, match="needs a lower version beside it"):
        read_config({"applications": [entry(2, canary={})]})


def test_frontends_hear_of_a_withdrawal_and_a_load_ends_it() -> None:
    world = World()
    world.router.withdraw("cats", "bad")
    world.settle()
    assert world.frontend.take(Unavailable) == [Unavailable({"cats": withdrawn("bad")})]
    assert snapshot(world.router)["absent"] == {"cats": withdrawn("bad")}
    # Backends that announce themselves anew change nothing.
    world.hear(world.backend, Ready("emulated", ("v",)))
    assert snapshot(world.router)["absent"] == {"cats": withdrawn("bad")}
    world.router.fleet.availability.on_ask("cats", True)
    world.hear(world.backend, Ready("emulated", ("v",)))
    assert snapshot(world.router)["absent"] == {}


def test_another_control_plane_remembers_what_was_withdrawn() -> None:
    trial = canaries(config(requests_min=1))
    absent = {"m@2": withdrawn("9 of 10 answers were bad")}
    assert trial.judge(replace(told(0, 5, term=1), absent=absent)) == {}
    # The router starts anew, and has not heard of it.
    assert trial.judge(told(9, 0, term=2)) == {"m@2": "9 of 10 answers were bad"}


def test_an_error_that_reads_like_a_withdrawal_is_none() -> None:
    trial = canaries(config(requests_min=1))
    failed = Unavailability(UnavailableCause.LOAD_FAILED, "withdrawn: by its author")
    assert trial.judge(replace(told(0, 5, term=1), absent={"m@2": failed})) == {}
    assert trial.withdrawn == {}


def test_status_says_why_in_words() -> None:
    shown = DeploymentStatus(replace(told(0, 0), absent={"m@2": withdrawn("bad")}), {}, [])
    assert shown.to_json()["absent"] == {"m@2": "withdrawn: bad"}
