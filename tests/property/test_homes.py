"""Whatever happens to routers and the directory, each request is at one home, and ends once."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.requests.pending_request import (
    RequestTerms,
    SendAnswer,
    ToRouter,
)
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.frontend import TableLimits
from fermata.foundation.units import ms, seconds
from fermata.router.core.events import DropReason
from fermata.router.links.directory import Directory, Home, shifted
from fermata.router.links.messages import Dropped, Result, Submit

SUB_CLUSTERS = 3
APPLICATIONS = ("a", "b", "c")
shares = st.lists(st.floats(0.05, 1.0), min_size=1, max_size=6).map(
    lambda given: tuple((home, each / sum(given)) for home, each in enumerate(given))
)
headrooms = st.dictionaries(st.integers(0, 5), st.floats(0.0, 1.0))


@given(shares, headrooms)
@settings(deadline=None)
def test_shares_stay_shares(before: tuple[tuple[int, float], ...], room: dict[int, float]) -> None:
    after = shifted(before, room)
    assert [home for home, _ in after] == [home for home, _ in before]
    assert abs(sum(share for _, share in after) - 1.0) < 1e-9
    assert all(share > 0 for _, share in after)


@given(st.floats(0.2, 3.0), st.floats(0.2, 3.0))
@settings(max_examples=50, deadline=None)
def test_headroom_becomes_equal(first: float, second: float) -> None:
    """Two homes with so many backends each, and work for half of them all."""
    split = ((0, 0.5), (1, 0.5))
    work = (first + second) / 2
    for _ in range(400):
        used = {home: work * share for home, share in split}
        room = {0: 1 - used[0] / first, 1: 1 - used[1] / second}
        split = shifted(split, {home: max(0.0, each) for home, each in room.items()})
    assert abs(room[0] - room[1]) < 0.02


class Homes(RuleBasedStateMachine):
    """A table with three routers, each of which knows what it was sent."""

    def __init__(self) -> None:
        super().__init__()
        limits = TableLimits(reply_ns=ms(1), router_wait_ns=seconds(1))
        self.table = RequestTable(1, limits, SUB_CLUSTERS)
        self.now_ns = 0
        self.version = 0
        self.term = 0
        self.up = [False] * SUB_CLUSTERS
        self.at: list[dict[int, str]] = [{} for _ in self.up]
        """Requests that each router has, by id."""
        self.open: set[int] = set()

    def carry_out(self) -> None:
        for effect in self.table.take_effects():
            if isinstance(effect, ToRouter):
                assert self.up[effect.home], "said to nobody"
                if isinstance(effect.message, Submit):
                    self.at[effect.home][effect.message.rid] = effect.message.application
                else:
                    self.at[effect.home].pop(effect.message.rid, None)
            elif isinstance(effect, SendAnswer):
                self.open.remove(effect.rid)

    @rule(passed_ns=st.integers(0, ms(300)))
    def wait(self, passed_ns: int) -> None:
        self.now_ns += passed_ns
        self.table.on_time(self.now_ns)
        self.carry_out()

    @rule(application=st.sampled_from(APPLICATIONS), client=st.integers(0, 3))
    def arrive(self, application: str, client: int) -> None:
        given = RequestTerms(application, ms(400), ms(400), 1, client=client)
        rid = self.table.admit(self.now_ns, given)
        if not isinstance(rid, Refusal):
            self.open.add(rid)
        self.carry_out()

    @rule(home=st.integers(0, SUB_CLUSTERS - 1))
    def turn(self, home: int) -> None:
        """A router goes, with all that it knew, or comes."""
        self.up[home] = not self.up[home]
        if self.up[home]:
            self.term += 1
            self.table.on_router_up(self.now_ns, self.term, home)
        else:
            self.at[home].clear()
            self.table.on_router_down(self.now_ns, home)
        self.carry_out()

    @rule(
        where=st.fixed_dictionaries(
            {name: st.sets(st.integers(0, SUB_CLUSTERS - 1), min_size=1) for name in APPLICATIONS}
        ),
        sticky=st.sets(st.sampled_from(APPLICATIONS)),
    )
    def move(self, where: dict[str, set[int]], sticky: set[str]) -> None:
        self.version += 1
        homes = tuple(map(Home, range(SUB_CLUSTERS)))
        applications = {
            name: tuple((home, 1 / len(each)) for home in sorted(each))
            for name, each in where.items()
        }
        told = Directory(self.version, homes, applications, tuple(sorted(sticky)))
        assert self.table.on_directory(self.now_ns, told)
        self.carry_out()

    @precondition(lambda self: any(self.at))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A router hands a request back that it serves no more, or a backend of it answers."""
        home = data.draw(st.sampled_from([at for at, known in enumerate(self.at) if known]))
        rid = data.draw(st.sampled_from(sorted(self.at[home])))
        application = self.at[home].pop(rid)
        if home in self.table.homes.of(application):
            self.table.on_result(self.now_ns, 9, Result(rid, "v", 1, 0, 0))
        else:
            self.table.on_dropped(self.now_ns, Dropped(rid, DropReason.MOVED), home)
        self.carry_out()

    @invariant()
    def has_an_owner(self) -> None:
        assert set(self.table.entries) == self.open
        for rid, entry in self.table.entries.items():
            if entry.home >= 0 and self.up[entry.home]:
                assert rid in self.at[entry.home], "its router does not know it"
            else:
                served = self.table.homes.of(entry.application)
                elsewhere = [home for home in served if self.up[home] and home != entry.home]
                assert not elsewhere or entry.home < 0, "another router could have it"

    def teardown(self) -> None:
        self.table.on_time(self.now_ns + seconds(10))
        self.carry_out()
        assert not self.open, "never answered"


Homes.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHomes = Homes.TestCase
