"""The control plane of several routers with pipelines: whom it tells what."""

from sub_cluster_world import FakeClusters, play, until
from test_placed_pipelines import pipeline
from test_sub_cluster_homes import config

from fermata.deployments.control.sub_clusters.several_routers import SeveralRouters

PIPELINES = [pipeline("p", "a", "c")]


def test_each_router_is_made_with_its_own_pipelines() -> None:
    async def story(clusters: FakeClusters, control: SeveralRouters) -> None:
        home = control.keeper.directory.homes_of("p")[0]
        assert list(clusters.routers[home].plan.pipelines) == ["p"]
        assert not clusters.routers[1 - home].plan.pipelines
        await until(lambda: all(each.told for each in clusters.routers.values()))
        known = clusters.routers[1 - home].known
        assert known is not None
        assert known.applications["p"] == known.applications["a"] == ((home, 1.0),)
        status = await control.status()
        shares = {each.sub_cluster: set(each.applications) for each in status.routers}
        assert shares[home] >= {"a", "c", "p"}
        assert shares[1 - home].isdisjoint({"a", "c", "p"})

    play(story, config(pipelines=PIPELINES))
