"""What a backend keeps of the past is bounded, whatever it meets."""

import asyncio

from fermata.deployments.backend.process import OTHERS, BackendProcess
from fermata.deployments.backend.settings import BackendSettings
from fermata.router.links.messages import FrontendAddress

SETTINGS = BackendSettings(1)


async def nowhere() -> str:
    raise AssertionError("nobody asks")


def test_reasons_of_failures_are_kept_apart_up_to_a_bound() -> None:
    backend = BackendProcess(SETTINGS, {}, nowhere)
    for count in range(3 * SETTINGS.reasons_max):
        backend._count(f"no such token: {count}")
    assert len(backend.failures) == SETTINGS.reasons_max + 1
    assert backend.failures[OTHERS] == 2 * SETTINGS.reasons_max
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
