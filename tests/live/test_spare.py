"""The only backend of a real server is killed, and its spare takes over."""

import pytest

pytest.importorskip("ray")
from benchmarks.live_server import fermata
from benchmarks.only_backend import GAP_S, config, strike, whole

pytestmark = [pytest.mark.live]
KILLS = 3


def test_the_only_backend_is_killed_three_times_and_hardly_missed() -> None:
    with fermata(**config(spare=True)) as server:
        numbers = []
        for _ in range(KILLS):
            whole(server, spare=True)
            (serves,) = server.status()["backends"]
            numbers.append(serves)
            kill = strike(server, spare=True)
            assert kill.lost == 0
            assert kill.twice == 0
            assert kill.untrue == 0, kill.outcomes
            assert kill.gap_s <= GAP_S, kill
        whole(server, spare=True)
        (serves,) = server.status()["backends"]
        (spare,) = server.status()["spares"].values()
        # Each time the spare took over, and another process became the spare of that.
        assert str(spare["first"]) == serves
        assert len({*numbers, serves}) == KILLS + 1


@pytest.mark.long
def test_a_spare_in_host_memory_takes_over_twice_from_a_process_that_is_replaced() -> None:
    """Far sooner than Serve has another process, which then waits in host memory too."""
    with fermata(**config(spare="host")) as server:
        numbers = []
        for _ in range(2):
            whole(server, spare="host")
            (serves,) = server.status()["backends"]
            (spare,) = server.status()["spares"].values()
            assert spare["models"], "it has read nothing"
            numbers.append(serves)
            kill = strike(server, spare="host")
            assert kill.lost == 0
            assert kill.twice == 0
            assert kill.untrue == 0, kill.outcomes
            assert kill.gap_s <= 2 * GAP_S, kill
        whole(server, spare="host")
        (serves,) = server.status()["backends"]
        assert len({*numbers, serves}) == 3
