"""Backends of the node that an input lies on."""

from router_world import LOST, FakeLink, World, rid

from fermata.foundation.units import ms
from fermata.router.links.messages import Ready, Run, Submit


def test_backends_of_a_frontends_node_are_given_first() -> None:
    world = World(policy="eager")
    backends: dict[str, FakeLink] = {}
    for number, node in ((6, "far"), (7, "here")):
        backends[node] = FakeLink("backend", number, node)
        world.router.on_up(backends[node])
        world.hear(backends[node], Ready("emulated", ("v",)))
    frontend = FakeLink("frontend", 3, "here")
    world.router.on_down(world.frontend, LOST)
    world.router.on_up(frontend)
    world.hear(frontend, Submit(rid(1, 3), "cats", ms(20), ms(20)))
    world.advance(1)
    assert [run.rids for run in backends["here"].take(Run)] == [(rid(1, 3),)]
    # Where it is busy, others are as good.
    for number in (2, 3):
        world.hear(frontend, Submit(rid(number, 3), "cats", ms(20), ms(20)))
        world.advance(1)
    assert [len(each.take(Run)) for each in (world.backend, backends["far"])] == [1, 1]
