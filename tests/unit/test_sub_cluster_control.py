"""The control plane of several sub-clusters, with routers that only remember what they are told."""

import asyncio
from typing import Any

import pytest
import snapshots
from sub_cluster_world import GIVEN, FakeClusters, FakeRouter, play, until
from test_sub_cluster_homes import config

from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.control.page.history import History
from fermata.deployments.control.sub_clusters.all_routers import AllRouters
from fermata.deployments.control.sub_clusters.several_routers import SeveralRouters
from fermata.foundation.errors import NoAnswerError
from fermata.foundation.units import seconds
from fermata.router.assembly import RouterConfig
from fermata.router.telemetry.snapshot import RouterSnapshot


def test_each_sub_cluster_has_a_router_with_its_applications() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        served = {
            number: {each.name for each in router.plan.applications}
            for number, router in clusters.routers.items()
        }
        assert sorted(map(sorted, served.values())) == [["a", "b"], ["b", "c"]]
        assert all(each.plan.loads_all for each in clusters.routers.values())
        await until(lambda: all(each.known for each in clusters.routers.values()))
        known = clusters.routers[0].known
        assert known is not None
        assert set(known.homes_of("b")) == {0, 1}
        assert {number for number in served if "a" in served[number]} == set(known.homes_of("a"))

    play(story)


def test_all_routers_are_told_of_a_new_leader() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        await until(lambda: all(each.known for each in clusters.routers.values()))
        clusters.routers[1].term = 99

        def heard(router: FakeRouter) -> bool:
            return router.known is not None and router.known.homes[1].term == 99

        await until(lambda: all(map(heard, clusters.routers.values())))
        assert control.keeper.directory.homes[1].address == "127.0.0.1:1"

    play(story)


def test_requests_shift_to_the_sub_cluster_with_headroom() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        clusters.routers[0].busy, clusters.routers[1].busy = 0.9, 0.1
        await until(lambda: dict(control.keeper.directory.applications["b"])[1] > 0.55)
        alone = control.keeper.directory.applications["a"]
        assert [share for _, share in alone] == [1.0]

    play(story)


def test_requests_shift_from_a_router_that_is_full_though_its_backends_idle() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        full, other = clusters.routers[0], clusters.routers[1]
        full.busy, other.busy = 0.1, 0.5
        full.cpu = 0.76
        await until(lambda: dict(control.keeper.directory.applications["b"])[1] > 0.55)

    play(story)


def test_a_router_is_as_busy_as_it_was_in_the_last_minute() -> None:
    def told(up_s: int, cpu_s: int) -> RouterSnapshot:
        rank = snapshots.sub_cluster(router_cpu_ns=seconds(cpu_s))
        return snapshots.router({}, up_ns=seconds(up_s), ranks=[rank])

    history = History()
    assert history.router_busy(told(10, 4)) == pytest.approx(0.4)
    history.add(told(10, 4))
    assert history.router_busy(told(10, 4)) == 0.0
    # 38 s of CPU time in 50 s.
    assert history.router_busy(told(60, 42)) == pytest.approx(0.76)


def test_what_a_router_carries_is_tried_where_plans_are_made_by_it() -> None:
    given = config("abc", count=2, epochs={"every_s": 60})

    async def planned() -> None:
        clusters = FakeClusters()
        clusters.speed_rps = 50_000.0
        control = SeveralRouters(given, clusters.of)  # type: ignore[arg-type]
        await asyncio.shield(control.starting)
        assert clusters.tried == 1
        assert control.epochs is not None
        assert control.epochs.control.placer is not None
        assert control.epochs.control.placer.capacity.rate_rps == pytest.approx(40_000.0)
        clusters.followed = False
        await control.end()

    asyncio.run(asyncio.wait_for(planned(), 30))

    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        assert clusters.tried == 0

    play(story)


def test_another_control_plane_adopts_routers_and_homes() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        await until(lambda: all(each.known for each in clusters.routers.values()))
        before, first = dict(clusters.routers), control.keeper.directory
        await control.end()
        later = SeveralRouters(GIVEN, clusters.of)  # type: ignore[arg-type]
        await asyncio.shield(later.starting)
        assert (clusters.made, clusters.solved) == (2, 1)
        assert clusters.routers == before
        assert later.homes == control.homes
        assert later.keeper.directory.version > first.version
        clusters.followed = False
        await later.end()

    play(story)


def test_status_tells_of_all_routers_and_leaves_out_who_is_silent() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        told = (await control.status()).to_json()
        assert sorted(told["applications"]) == ["a", "b", "c"]  # type: ignore[arg-type]
        assert told["applications"]["b"]["requests"] == 20  # type: ignore[index, call-overload]
        routers: Any = told["routers"]
        assert [(each["sub_cluster"], each["pid"]) for each in routers] == [(0, 100), (1, 101)]
        assert told["idle_fractions"] == [pytest.approx(0.5)] * 2
        clusters.routers[0].ended = True
        await asyncio.sleep(0.3)
        told = (await control.status()).to_json()
        left: Any = told["routers"]
        assert [each["sub_cluster"] for each in left] == [1]
        clusters.routers[0].ended = False

    play(story)


def test_policies_are_told_to_the_routers_of_their_applications() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        router = GIVEN.router.model_copy(update={"policy": "eager", "policy_options": {}})
        control.set_policies(GIVEN.model_copy(update={"router": router}))
        await until(
            lambda: all(
                each.policies and each.policies[-1].policy == "eager"
                for each in clusters.routers.values()
            )
        )

    play(story)


MOVING = config("abcd", epochs={"every_s": 0.5, "solve_s": 1, "move_s": 1})


def homes(control: SeveralRouters) -> dict[str, int]:
    return {name: at[0][0] for name, at in control.keeper.directory.applications.items()}


def hot_pair(clusters: FakeClusters, control: SeveralRouters) -> set[str]:
    """Have two applications that live together get most requests, so many that two have to change
    places."""
    found = homes(control)
    hot = {name for name, at in found.items() if at == 0}
    assert len(hot) == 2
    clusters.routers[0].rates = {name: 500.0 if name in hot else 200.0 for name in found}
    return hot


def test_epochs_move_an_application_to_the_router_with_less_to_do() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        first, second = clusters.routers[0], clusters.routers[1]
        await until(lambda: len(first.placed) == len(second.placed) == 2)
        hot, version = hot_pair(clusters, control), control.keeper.directory.version
        await until(lambda: len({homes(control)[name] for name in hot}) == 2)
        assert control.keeper.directory.version > version
        (moved,) = (name for name in hot if homes(control)[name] == 1)
        # Loaded there while it was served here, and here until frontends have heard of it.
        assert moved in first.placed
        assert moved in second.placed
        await until(lambda: moved not in first.placed)
        assert all(len(each) >= 2 for each in (*first.places, *second.places))
        status = (await control.status()).to_json()
        scaling: Any = status["scaling"]
        await until(lambda: control.epochs is not None and not control.epochs.control.is_placing)
        assert scaling["plan"].keys() == set("abcd")
        routers: Any = status["routers"]
        assert moved in routers[1]["applications"]

    play(story, MOVING)


def test_a_move_that_does_not_end_in_time_is_taken_back() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        first, second = clusters.routers[0], clusters.routers[1]
        await until(lambda: len(first.placed) == len(second.placed) == 2)
        await until(lambda: control.epochs is not None and control.epochs.running is not None)
        second.loads = False
        hot = hot_pair(clusters, control)
        await until(lambda: not hot.isdisjoint(second.placed))
        await until(lambda: hot.isdisjoint(second.placed))
        assert {homes(control)[name] for name in hot} == {0}
        assert all(hot <= set(each) for each in first.places)

    play(story, MOVING)


def test_a_new_leader_is_told_what_it_holds() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        second = clusters.routers[1]
        await until(lambda: len(second.placed) == 2)
        own, second.placed = second.placed, ()
        second.term = 99
        await until(lambda: second.placed == own)

    play(story, MOVING)


WIDE = config("abcdef", sub_clusters={"count": 3}, epochs={"every_s": 0.5, "move_s": 1})


def test_a_silent_router_does_not_keep_the_others_from_moving() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        routers = clusters.routers
        await until(lambda: all(len(each.placed) == 2 for each in routers.values()))
        await until(lambda: control.epochs is not None and control.epochs.running is not None)
        before, last = homes(control), routers[2]
        last.silent = True
        hot = hot_pair(clusters, control)
        await until(lambda: {homes(control)[name] for name in hot} == {0, 1})
        moved = {name for name, at in homes(control).items() if before[name] != at}
        assert all(before[name] != 2 for name in moved)
        assert 2 not in {homes(control)[name] for name in moved}
        last.silent = False

    play(story, WIDE)


def test_applications_leave_a_sub_cluster_without_backends_and_none_comes() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        first, second = clusters.routers[0], clusters.routers[1]
        await until(lambda: len(first.placed) == len(second.placed) == 2)
        await until(lambda: control.epochs is not None and control.epochs.running is not None)
        second.loads, second.backends = False, 0
        hot = hot_pair(clusters, control)
        # What lives there is asked for too, and leaves.
        await until(lambda: set(homes(control).values()) == {0})
        await asyncio.sleep(1.0)
        assert hot.isdisjoint(name for each in second.places for name in each)
        # They move once there is one.
        second.loads, second.backends = True, 1
        await until(lambda: len({homes(control)[name] for name in hot}) == 2)

    play(story, MOVING)


def test_requests_of_applications_that_live_everywhere_are_told_apart() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        await until(lambda: control.epochs is not None and control.epochs.running is not None)
        assert control.epochs is not None
        clusters.routers[0].rates, clusters.routers[1].rates = {"a": 500.0}, {"c": 500.0}
        told = await control.epochs.router.snapshot()
        assert [each.settled_requests for each in told.ranks] == [10, 10]

    play(story, config("abc", sub_clusters={"spread": ["b"]}, epochs={"every_s": 60}))


def test_one_that_has_answered_once_may_be_silent_and_one_that_never_has_is_waited_for() -> None:
    async def read() -> None:
        plan = RouterConfig(())
        first, second = FakeRouter(0, plan, "", 1), FakeRouter(1, plan, "", 1)
        routers = AllRouters([first, second], two_backends, 0.2)  # type: ignore[list-item]
        second.silent = True
        with pytest.raises(NoAnswerError, match=r"\[1\]"):
            await routers.snapshots()
        second.silent = False
        await routers.snapshots()
        second.silent = True
        assert len(await routers.snapshots()) == 2
        assert routers.silent == {1}
        first.silent = True
        with pytest.raises(NoAnswerError):
            await routers.snapshots()

    asyncio.run(read())


async def two_backends(number: int) -> int:
    return 2


def test_one_that_never_answers_is_told_of_by_its_backends_after_a_while() -> None:
    async def read() -> None:
        plan = RouterConfig(())
        first, second = FakeRouter(0, plan, "", 1), FakeRouter(1, plan, "", 0)
        routers = AllRouters([first, second], two_backends, 0.0)  # type: ignore[list-item]
        second.silent = True
        told = (await routers.snapshots())[1]
        assert (told.wanted, told.applications, routers.silent) == ([2], {}, {1})
        assert routers.term == 1
        # Once it answers, all is read anew: its counts begin.
        second.silent, second.term = False, 7
        assert routers.term == 8
        assert (await routers.snapshots())[1].term == 7

    asyncio.run(read())


SCALED = config("abc", autoscaler={"maximum": 8, "window_s": 0.3, "startup_s": 0.1})


def test_each_sub_cluster_is_scaled_by_what_its_own_router_needs() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        first, second = clusters.routers[0], clusters.routers[1]
        first.least, first.busy = 4.0, 0.95
        second.least, second.busy = 1.0, 0.3
        await until(lambda: bool(first.wanted) and first.wanted[0] >= 4)
        assert len(first.wanted) == len(second.wanted) == 1
        # Together they never have more than the deployment may.
        second.least, second.busy = 20.0, 1.0
        await until(lambda: second.wanted[0] >= 4 and first.wanted[0] + second.wanted[0] == 8)
        # A router that comes to lead is told.
        first.term, first.wanted = 99, []
        await until(lambda: bool(first.wanted))
        scaling: Any = (await control.status()).to_json()["scaling"]
        assert len(scaling["advice"]) == 2
        assert all(core.scaling is None for core in control.cores)

    play(story, SCALED)


def test_a_silent_router_does_not_keep_the_others_from_scaling() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        first, second = clusters.routers[0], clusters.routers[1]
        await until(lambda: bool(first.wanted) and bool(second.wanted))
        kept, second.silent = second.wanted, True
        first.least, first.busy = 4.0, 0.95
        await until(lambda: first.wanted[0] >= 4)
        assert second.wanted == kept
        second.silent, second.least, second.busy = False, 3.0, 0.95
        await until(lambda: second.wanted[0] >= 3)

    play(story, SCALED)


def test_windows_and_epochs_are_decided_side_by_side() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        await until(lambda: all(each.placed and each.wanted for each in clusters.routers.values()))
        scaling: Any = (await control.status()).to_json()["scaling"]
        assert (len(scaling["advice"]), sorted(scaling["plan"])) == (2, ["a", "b", "c"])

    more = {"window_s": 0.3, "maximum": 8}
    play(story, config("abc", autoscaler=more, epochs={"every_s": 5}))


AUTO = {"count": "auto", "count_max": 3}
FEW_RPS = 10.0
"""R_max of a router: with the rates below all of them are needed."""


def automatic(**more: Any) -> DeploymentConfig:
    epochs = {"every_s": 0.3, "solve_s": 0.2, "rate_max_rps": FEW_RPS, "imbalance": 0.0}
    return config("abc", sub_clusters=AUTO, epochs=epochs, **more)


def test_one_sub_cluster_is_open_at_first_and_has_all_backends() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        await until(lambda: all(each.wanted for each in clusters.routers.values()))
        assert [clusters.routers[at].wanted for at in range(3)] == [[4], [0], [0]]
        assert set(control.homes.values()) == {(0,)}
        # With a fixed number of backends it stays so, and status tells what is needed.
        clusters.routers[0].rates = dict.fromkeys("abc", 9.0)
        assert control.counting is not None
        await until(lambda: control.counting.needed == 3)  # type: ignore[union-attr]
        scaling: Any = (await control.status()).to_json()["scaling"]
        assert scaling["routers_needed"] == 3
        assert control.counting.opened == 1

    play(story, automatic())


def test_sub_clusters_open_with_the_load_and_applications_move_there() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        routers = clusters.routers
        for number in (1, 2):
            routers[number].backends = 0
        await until(lambda: all(each.wanted for each in routers.values()))
        routers[0].rates = dict.fromkeys("abc", 9.0)
        routers[0].least = 4.0
        await until(lambda: all(each.wanted != [0] for each in routers.values()))
        for each in routers.values():
            each.backends = each.wanted[0]

        def homes() -> set[tuple[int, ...]]:
            directory = control.keeper.directory
            return {directory.homes_of(name) for name in "abc"}

        await until(lambda: homes() == {(0,), (1,), (2,)})

    play(story, automatic(autoscaler={"maximum": 40, "window_s": 0.3}))
