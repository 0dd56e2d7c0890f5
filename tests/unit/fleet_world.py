"""A fleet behind a live router in virtual time: backends that run, and some that fail."""

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

from msgspec.structs import replace
from router_world import TABLE, FakeLink, World, rid

from fermata.foundation.units import NEVER, ms
from fermata.router.links.closing import CloseCode, Closed
from fermata.router.links.messages import Done, Dropped, Ready, Retire, Run, Submit

SLO_NS = ms(50)
ERROR = "RuntimeError: CUDA error: an illegal memory access was encountered"


class Machine:
    """One backend: its link, and what is wrong with it."""

    def __init__(self, link: FakeLink) -> None:
        self.link = link
        self.broken = False
        self.fails_after_ns = 0
        """A broken one: from the start of a batch to its error."""
        self.free_at_ns = 0
        self.ran: list[Run] = []


class FleetWorld(World):
    """Requests come at a steady pace, and every end of theirs is counted."""

    def __init__(self, backends: int, policy: str = "eager", broken: Iterable[int] = ()) -> None:
        super().__init__(policy, accuracy=0.9)
        links = [self.backend if n == 5 else self.link("backend", n) for n in range(backends)]
        if backends <= 5:
            self.router.on_down(self.backend, Closed(CloseCode.SHUTDOWN, "it goes"))
        for link in links:
            if link is not self.backend:
                self.hear(link, Ready("emulated", ("v",)))
        self.machines = [Machine(link) for link in links]
        for number in broken:
            self.machines[number].broken = True
        self.poison: set[int] = set()
        """Requests that fail wherever they run, with the half of a batch that they are in."""
        self.agenda: list[tuple[int, int, Machine, Run, Done]] = []
        self.order = count()
        self.sent = 0
        self.deadline_ns: dict[int, int] = {}
        """Deadlines of requests without an answer."""
        self.ever_ejected: set[int] = set()
        self.good: set[int] = set()
        self.bad: dict[int, str] = {}

    # Load

    def send(
        self, requests: int, every_ns: int, poison_every: int = 0, slo_ns: int = SLO_NS
    ) -> None:
        """So many requests, one after the other; each n-th of them poisoned."""
        for _ in range(requests):
            self.sent += 1
            one = rid(self.sent)
            if poison_every and self.sent % poison_every == 0:
                self.poison.add(one)
            self.deadline_ns[one] = self.now_ns + slo_ns
            self.hear(self.frontend, Submit(one, "cats", slo_ns, slo_ns))
            self.play(every_ns)

    def play(self, for_ns: int) -> None:
        """Let time pass: ends of batches and the router's timer, each when it is due."""
        until_ns = self.now_ns + for_ns
        while True:
            self._start_all()
            ends_ns = self.agenda[0][0] if self.agenda else NEVER
            next_ns = min(ends_ns, self.wakes[0].at_ns)
            if next_ns > until_ns:
                break
            if ends_ns <= self.wakes[0].at_ns:
                self.now_ns = max(self.now_ns, ends_ns)
                _, _, machine, run, done = heappop(self.agenda)
                self._end(machine, run, done)
            else:
                self.advance(max(0, next_ns - self.now_ns))
        self.now_ns = until_ns

    def end(self) -> None:
        """Nothing more comes; whoever is open has an answer by its deadline."""
        self.play(ms(200))
        assert not self.deadline_ns, f"{len(self.deadline_ns)} requests have no answer"
        assert len(self.good) + len(self.bad) == self.sent

    # Backends

    def _start_all(self) -> None:
        self.ever_ejected.update(self.router.supervisor.outliers.ejected)
        for each in self.frontend.take(Dropped):
            self._answer(each.rid, each.reason, each.detail)
        for machine in self.machines:
            for run in machine.link.take(Run) if machine.link.said else ():
                machine.ran.append(run)
                start_ns = max(self.now_ns, machine.free_at_ns)
                run_ns, error = self._fate(machine, run)
                machine.free_at_ns = start_ns + run_ns
                done = Done(run.batch, run_ns, 0, error)
                heappush(self.agenda, (start_ns + run_ns, next(self.order), machine, run, done))

    def _fate(self, machine: Machine, run: Run) -> tuple[int, str]:
        """How long it takes, and why it gives no results; as the executor has it."""
        if machine.broken:
            return machine.fails_after_ns, ERROR
        size = len(run.rids)
        run_ns = TABLE[size - 1]
        if self.poison.isdisjoint(run.rids):
            return run_ns, ""
        if size > 1:
            run_ns += TABLE[size // 2 - 1] + TABLE[size - size // 2 - 1]
        spoilt = [half for half in _halves(run.rids) if not self.poison.isdisjoint(half)]
        return run_ns, "ValueError: poison" if len(spoilt) == len(_halves(run.rids)) else ""

    def _end(self, machine: Machine, run: Run, done: Done) -> None:
        returned: list[int] = []
        if not done.failed:
            for half in _halves(run.rids):
                spoilt = not self.poison.isdisjoint(half)
                if spoilt and len(half) > 1:
                    returned += half
                    continue
                for each in half:
                    self._answer(each, "failed" if spoilt else "", "ValueError: poison")
        error = "ValueError: poison" if returned else ""
        self.hear(machine.link, replace(done, spoilt=tuple(returned), error=error))

    def _answer(self, one: int, reason: str, detail: str) -> None:
        deadline_ns = self.deadline_ns.pop(one, None)
        assert deadline_ns is not None, f"request {one} is answered twice"
        if reason:
            self.bad[one] = detail if reason == "failed" else reason
        elif self.now_ns > deadline_ns:
            self.bad[one] = "late"
        else:
            self.good.add(one)

    def failed(self, run: Run) -> Done:
        """How a batch ends at once."""
        return Done(run.batch, 0, 0, ERROR)

    def gone(self, number: int, code: CloseCode) -> None:
        """A backend's link ends."""
        machine = self.machines[number]
        self.agenda = [each for each in self.agenda if each[2] is not machine]
        self.router.on_down(machine.link, Closed(code, "it is gone"))
        self.settle()

    # What the router made of it

    @property
    def ejected(self) -> list[int]:
        return sorted(self.router.supervisor.outliers.ejected)

    @property
    def replaced(self) -> list[int]:
        """Backends that were asked to let themselves be replaced."""
        return [n for n, each in enumerate(self.machines) if each.link.take(Retire)]

    @property
    def innocent(self) -> int:
        """Bad requests that were no poison, and did not share a batch with any."""
        return sum("poison" not in why for why in self.bad.values())


def _halves(rids: tuple[int, ...]) -> list[tuple[int, ...]]:
    middle = len(rids) // 2
    return [half for half in (rids[:middle], rids[middle:]) if half]
