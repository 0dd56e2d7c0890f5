"""Peace after faults: the world plays on until a deployment is whole again."""

from fermata.fault_simulator.processes import RouterHost
from fermata.fault_simulator.system import SimulatedDeployment
from fermata.foundation.units import ms, seconds

SETTLE_NS = seconds(75)
"""From the end of the last fault until all must be well: a replacement, and a few attempts to
reach everyone; a model that was in quarantine takes longest."""
LOOK_NS = ms(100)
REST_NS = seconds(3)
"""For backends that try to reach a frontend, or have given up just now."""


def settle(system: SimulatedDeployment, rest_ns: int = REST_NS) -> None:
    """Play on until everyone has found everyone, and what came last has ended."""
    world = system.world
    give_up_at_ns = world.now_ns + SETTLE_NS
    while not _is_whole(system) and world.now_ns < give_up_at_ns:
        world.run_until(world.now_ns + LOOK_NS)
    world.run_until(world.now_ns + rest_ns)


def _is_whole(system: SimulatedDeployment) -> bool:
    live = system.router.live if system.router is not None else None
    if system.starting or live is None or not system.controlled():
        return False
    if live.fleet.availability.quarantined or live.supervisor.outliers.ejected:
        return False
    if not all(each is not None and _is_seated(system, each) for each in system.seats):
        return False
    linked = all(
        each.process.pipeline.announced and not each.machine.hangs and not each.machine.hung_on
        for each in system.backend_hosts()
    )
    return (
        linked
        and (system.spares is None or system.spares.whole())
        and not live.fleet.availability.not_loaded(live.fleet.serving())
        and sorted(live.fleet.backends) == system.backend_numbers()
        and sorted(live.fleet.frontends) == system.frontend_numbers()
    )


def _is_seated(system: SimulatedDeployment, host: RouterHost) -> bool:
    """It leads and is the only one, or watches the one that does."""
    # One whose loop hangs has not been missed yet.
    here = host.live is not None and not host.loop.held
    return here and (host is system.router or host.watched)
