"""Mapped cameras and a version on trial under simulated faults."""

from hashlib import blake2s
from typing import Any

import pytest

from fermata.fault_simulator.run import run_seed, run_trials
from fermata.router.links.messages import ClientNetworkReport
from fermata.router.live.driver import LiveRouter
from fermata.router.live.fleet.peers import LinkPeer

SEEDS = 4
SEARCH = 20


@pytest.mark.parametrize("seed", range(SEEDS))
def test_cameras_are_told_their_sizes_and_a_bad_version_goes(seed: int) -> None:
    story = run_trials(seed)
    assert not story.broken, story
    assert story.outcomes["served"] > 100


def test_neither_is_forgotten_with_a_router_or_a_control_plane() -> None:
    story = run_trials(100, ("kill", "clock-step", "usurp", "usurp-control"))
    assert not story.broken, story


def withdrawals_are_lost(what: object) -> None:
    """A router does not tell frontends which version was withdrawn."""
    if isinstance(what, LiveRouter):
        what.withdraw = lambda application, reason: None  # type: ignore[method-assign]


def first_link_is_kept(what: object) -> None:
    """A router advises a camera at the frontend where it met it first."""
    if not isinstance(what, LiveRouter):
        return
    on_report, first = what.clients.on_report, dict[int, LinkPeer]()

    def keep(now_ns: int, frontend: LinkPeer, said: ClientNetworkReport) -> None:
        on_report(now_ns, first.setdefault(said.client, frontend), said)

    what.clients.on_report = keep  # type: ignore[method-assign]


@pytest.mark.parametrize("plant", [withdrawals_are_lost, first_link_is_kept])
def test_a_planted_bug_is_found(plant: Any) -> None:
    kinds = ("drain-frontend", "machine")
    found = (seed for seed in range(SEARCH) if run_trials(seed, kinds, plant).broken)
    seed = next(found, None)
    assert seed is not None
    assert not run_trials(seed, kinds).broken


def test_one_seed_is_one_story() -> None:
    def told() -> str:
        return blake2s("\n".join(run_trials(1, tell=True).said).encode()).hexdigest()

    assert told() == told()


@pytest.mark.parametrize("kind", ["slow-disk", "full-disk"])
def test_models_are_loaded_again_once_a_disk_is_well(kind: str) -> None:
    for seed in range(3):
        story = run_seed(seed, (kind, "kill", "deploy"), scaled=False)
        assert not story.broken, story
