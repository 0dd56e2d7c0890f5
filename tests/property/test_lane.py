"""A lane's sets, against a plain list of what every backend holds and does."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from small_world import examples

from fermata.router.core.events import Batch
from fermata.router.core.matching.backend_state import BackendState
from fermata.router.core.matching.lane import Lane
from fermata.router.core.matching.standing import Standing
from fermata.router.core.source import Source

VARIANTS = 4
SWAPPABLE = 3
"""Any backend can bring it in."""
Step = tuple[str, int, frozenset[int] | None]
HELD = st.one_of(st.none(), st.frozensets(st.integers(0, VARIANTS - 1)))
STEPS = st.tuples(
    st.sampled_from(["add", "remove", "drain", "hold", "offer", "ahead", "weak", "withdraw"])
    | st.sampled_from(["wait", "wait", "leave"]),
    st.integers(0, 9),
    HELD,
)


class Wanting(Source):
    def __init__(self, may_run: frozenset[int] | None) -> None:
        self.may_run = may_run


@dataclass
class Twin:
    """A lane, and the same written down the long way."""

    lane: Lane = field(default_factory=lambda: Lane(0, {SWAPPABLE}))
    states: dict[int, BackendState] = field(default_factory=dict)
    standings: list[Standing] = field(default_factory=list)
    waited: dict[int, int] = field(default_factory=dict)
    """By standing: when its bid began to wait."""
    draining: set[int] = field(default_factory=set)
    weak: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        wanted = [{each} for each in range(VARIANTS)] + [{0, 1}, {2, SWAPPABLE}]
        for may_run in [None, *wanted]:
            source = Wanting(None if may_run is None else frozenset(may_run))
            self.standings.append(Standing(lambda now_ns, standing: None, source, self.lane))
            self.lane.join(self.standings[-1])

    def step(self, what: str, number: int, held: frozenset[int] | None) -> None:
        state, lane = self.states.get(number), self.lane
        if what in ("wait", "leave"):
            self.bid(what, number % len(self.standings), -number)
        elif state is None:
            if what == "add":
                added = BackendState(lambda now_ns, state: None, number, number % 2, lane, None)
                self.states[number] = added
                lane.add(added)
                lane.hold(added, held)
        elif what == "remove":
            lane.remove(self.states.pop(number))
            self.draining.discard(number)
        elif what == "drain":
            lane.drain(state)
            self.draining.add(number)
        elif what == "hold":
            lane.hold(state, held)
        elif what == "withdraw":
            lane.withdraw(state)
        elif what in ("offer", "ahead", "weak") and number not in self.draining:
            state.running = Batch(0, []) if what == "ahead" else None
            self.weak.discard(number)
            if what == "weak":
                self.weak.add(number)
            lane.offer(state, what == "weak")

    def bid(self, what: str, index: int, key: int) -> None:
        standing = self.standings[index]
        if what == "wait":
            standing.key = key
            self.lane.wait(standing)
            self.waited[index] = len(self.waited) + max(self.waited.values(), default=0)
        else:
            standing.ripe_stamp = 0
            self.waited.pop(index, None)

    def able(self, state: BackendState, standing: Standing) -> bool:
        wanted, held = standing.source.may_run, state.resident
        return wanted is None or held is None or bool(wanted & (held | {SWAPPABLE}))

    def order(self, state: BackendState) -> tuple[bool, bool, int]:
        return state.running is not None, state.backend in self.weak, state.backend

    def check(self) -> None:
        for standing in self.standings:
            able = [each for each in self.states.values() if self.able(each, standing)]
            up = [each for each in able if each.backend not in self.draining]
            free = sorted((each for each in able if each.free), key=self.order)
            assert (self.lane.up & standing.able()).bit_count() == len(up)
            assert (self.lane.free & standing.able()).bit_count() == len(free)
            assert self.lane.first_free(standing.able()) is (free[0] if free else None)
        for state in self.states.values():
            ripe = [
                (self.standings[index].key, since, index)
                for index, since in self.waited.items()
                if self.able(state, self.standings[index])
            ]
            first = self.lane.first_ripe(state)
            assert first is (self.standings[min(ripe)[2]] if ripe else None)


@examples(300)
@given(steps=st.lists(STEPS, min_size=20, max_size=60))
def test_sets_agree_with_what_every_backend_holds(steps: list[Step]) -> None:
    twin = Twin()
    for what, number, held in steps:
        twin.step(what, number, held)
        twin.check()
