"""What a backend keeps of the past is bounded, whatever it meets."""

import asyncio

import pytest
from router_world import FakeLink

from fermata.deployments.backend.meter import OTHERS
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.settings import BackendSettings
from fermata.router.links.messages import FrontendAddress
from fermata.router.live.fleet.peers import MET_MAX, BackendPeer

SETTINGS = BackendSettings(1)


async def nowhere() -> str:
    raise AssertionError("nobody asks")


def test_reasons_of_failures_are_kept_apart_up_to_a_bound() -> None:
    backend = BackendProcess(SETTINGS, {}, nowhere)
    for count in range(3 * SETTINGS.reasons_max):
        backend.failures.count(f"no such token: {count}")
    assert len(backend.failures.counts) == SETTINGS.reasons_max + 1
    assert backend.failures.counts[OTHERS] == 2 * SETTINGS.reasons_max
    assert backend.meter.failures == 3 * SETTINGS.reasons_max


def test_the_oldest_frontend_without_a_link_is_forgotten() -> None:
    async def test() -> None:
        frontends = BackendProcess(SETTINGS, {}, nowhere).frontends
        for number in range(SETTINGS.frontends_max + 2):
            frontends.add(FrontendAddress(number, f"there:{number}", ""))
            if number == 0:
                # One that is being reached stays.
                waits = asyncio.get_running_loop().create_task(asyncio.sleep(0))
                frontends.peers[0].connecting = waits
        assert len(frontends.peers) == SETTINGS.frontends_max
        assert 0 in frontends.peers
        assert not {1, 2} & frontends.peers.keys()
        await waits

    asyncio.run(test())


@pytest.mark.parametrize("beyond", [1, 3])
def test_a_frontend_is_known_although_all_others_are_linked(beyond: int) -> None:
    async def test() -> None:
        frontends = BackendProcess(SETTINGS, {}, nowhere).frontends
        waits = asyncio.get_running_loop().create_task(asyncio.sleep(0))
        for number in range(SETTINGS.frontends_max + beyond):
            frontends.add(FrontendAddress(number, f"there:{number}", ""))
            assert number in frontends.peers
            # As good as linked.
            frontends.peers[number].connecting = waits
        assert len(frontends.peers) == SETTINGS.frontends_max + beyond
        await waits

    asyncio.run(test())


def test_a_frontend_that_is_named_again_is_not_the_oldest() -> None:
    async def test() -> None:
        frontends = BackendProcess(SETTINGS, {}, nowhere).frontends
        for number in range(SETTINGS.frontends_max):
            frontends.add(FrontendAddress(number, f"there:{number}", ""))
        frontends.add(FrontendAddress(0, "there:0", ""))
        frontends.add(FrontendAddress(9999, "there:9999", ""))
        assert {0, 9999} <= frontends.peers.keys()
        assert 1 not in frontends.peers

    asyncio.run(test())


def test_a_router_names_again_what_a_backend_may_have_forgotten() -> None:
    peer = BackendPeer(FakeLink("backend", 1))
    assert SETTINGS.frontends_max >= 2 * MET_MAX
    for number in range(MET_MAX + 1):
        assert peer.meet({number}) == {number}
        assert peer.meet({number}) == set()
    assert peer.meet({0}) == {0}
    # A batch whose inputs lie with more of them: each is named before it.
    many = set(range(10_000, 10_000 + 2 * MET_MAX))
    assert peer.meet(many) == many
    assert peer.meet(many) == set()
