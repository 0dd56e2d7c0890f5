"""Clients of several SLOs, live: frontends take the reply off before RAMSIS sees a request."""

import pytest
from router_world import World

from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.deployments.frontend.requests.pending_request import RequestTerms, ToRouter
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.frontend import TableLimits
from fermata.foundation.units import SECOND, ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.core.events import Request
from fermata.router.links.messages import Ready
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.ramsis.drift import drifted
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.slo_classes import SloClasses
from fermata.router.policies.ramsis.tables import job_for

VARIANTS = (
    VariantSpec("fast", (ms(8), ms(12), ms(16)), accuracy=0.6),
    VariantSpec("good", (ms(30), ms(55)), accuracy=0.9),
)


@pytest.mark.parametrize(("reply_ms", "slos_ms"), [(2, [50, 200]), (5, [20, 60, 200]), (0, [30])])
def test_class_is_chosen_by_what_the_client_asked_for(reply_ms: float, slos_ms: list[int]) -> None:
    config = read_config(
        {
            "applications": [
                {
                    "name": "task",
                    "slo_ms": 100,
                    "policy": "ramsis",
                    "policy_options": {"slos_ms": slos_ms, "bins": 20},
                    "variants": [{"name": "fast", "latency_ms": [8, 9], "accuracy": 0.6}],
                }
            ],
            "frontend": {"reply_ms": reply_ms},
        }
    )
    built = assemble(router_config(config, known_profiles(config)))
    source = built.engine.sources[0]
    assert isinstance(source, SloClasses)
    for backend in range(len(slos_ms)):
        built.engine.on_backend_up(0, backend, owner=built.ownership.take(backend))
    for member, slo_ms in zip(source.members, slos_ms, strict=True):
        for asked_ms in (slo_ms, slo_ms + 10):
            left_ns = ms(asked_ms - reply_ms)
            assert source._member_for(Request(0, 0, SECOND, SECOND + left_ns)) is member
    # Less than any client of the longest class asks for: the next one below.
    left_ns = ms(slos_ms[-1] - 2 * reply_ms - 5)
    next_below = source.members[max(0, len(slos_ms) - 2)]
    assert source._member_for(Request(0, 0, SECOND, SECOND + left_ns)) is next_below


def test_classes_of_a_live_router_get_their_clients() -> None:
    application = ApplicationSpec("task", ms(200), VARIANTS)
    options: dict[str, object] = {"slos_ms": [50, 200], "bins": 10}
    world = World()
    world.router = LiveRouter(
        RouterConfig((application,), "ramsis", options, lead_ns=0),
        3,
        lambda: world.now_ns,
        world.soon.append,
        world._wake,
    )
    frontend = world.link("frontend", 2)
    for number in (5, 6):
        world.hear(world.link("backend", number), Ready("emulated", ("fast", "good")))
    source = world.router.engine.sources[0]
    assert isinstance(source, SloClasses)
    table = RequestTable(2, TableLimits(reply_ns=ms(2)))
    table.on_router_up(world.now_ns, 3)
    # The last uses its timeout as its SLO, and has lost some of that on its way.
    for slo_ms, left_ms in ((50, 500), (200, 500), (50, 500), (200, 199.5)):
        terms = RequestTerms("task", ms(slo_ms), ms(slo_ms), 1, left_ns=ms(left_ms))
        assert isinstance(table.admit(world.now_ns, terms), int)
    for effect in table.take_effects():
        if isinstance(effect, ToRouter):
            world.hear(frontend, effect.message)
    # On each backend one request runs and one waits.
    assert [[len(each.queue) for each in member.order] for member in source.members] == [[1], [1]]


def test_tables_count_what_the_reply_takes() -> None:
    spec = ApplicationSpec("task", ms(100), VARIANTS, reply_ns=ms(3))
    built = assemble(RouterConfig((spec,), "ramsis", {"bins": 10}, lead_ns=0))
    family, costs = built.families[0], built.engine.costs
    job = job_for(family, family.choices(), RamsisOptions(bins=10), costs, 0, 2, lead_ns=ms(1))
    assert job.problem.slo_ns == ms(96)
    assert not drifted(job, family, costs, ms(1))
