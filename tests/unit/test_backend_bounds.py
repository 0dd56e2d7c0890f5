"""What a backend keeps of the past is bounded, whatever it meets."""

import asyncio

from fermata.deployments.backend.frontends import PEERS_MAX
from fermata.deployments.backend.process import OTHERS, REASONS_MAX, BackendProcess, BackendSettings
from fermata.router.links.messages import FrontendAddress


async def nowhere() -> str:
    raise AssertionError("nobody asks")


def test_reasons_of_failures_are_kept_apart_up_to_a_bound() -> None:
    backend = BackendProcess(BackendSettings(1), {}, nowhere)
    for count in range(3 * REASONS_MAX):
        backend._count(f"no such token: {count}")
    assert len(backend.failures) == REASONS_MAX + 1
    assert backend.failures[OTHERS] == 2 * REASONS_MAX
    assert backend.meter.failures == 3 * REASONS_MAX


def test_the_oldest_frontend_without_a_link_is_forgotten() -> None:
    async def test() -> None:
        frontends = BackendProcess(BackendSettings(1), {}, nowhere).frontends
        for number in range(PEERS_MAX + 2):
            frontends.meet(FrontendAddress(number, f"there:{number}", ""))
            if number == 0:
                # One that is being reached stays.
                waits = asyncio.get_running_loop().create_task(asyncio.sleep(0))
                frontends.peers[0].connecting = waits
        assert len(frontends.peers) == PEERS_MAX
        assert 0 in frontends.peers
        assert not {1, 2} & frontends.peers.keys()
        await waits

    asyncio.run(test())
