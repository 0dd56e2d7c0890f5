"""Faults of the disks that models are loaded from."""

from collections.abc import Callable

from fermata.fault_simulator.environment.world import THREAD_NS
from fermata.fault_simulator.faults.draws import Draws
from fermata.foundation.units import ms

Heal = Callable[[], None]


def slow_disk(draws: Draws) -> Heal | None:
    """Models take long to be read."""
    host = draws.backend()
    if host is None:
        return None
    loop = host.loop
    loop.thread_ns = draws.rng.randrange(ms(100), ms(3000))

    def heal() -> None:
        loop.thread_ns = THREAD_NS

    return heal


def full_disk(draws: Draws) -> Heal | None:
    """No model can be loaded, where models are loaded at all."""
    host = draws.backend()
    if host is None or host.store is None:
        return None
    store = host.store
    store.full = True

    def heal() -> None:
        store.full = False

    return heal
