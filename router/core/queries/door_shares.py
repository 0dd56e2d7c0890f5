"""Fair shares at the door of queries: those who were given more than others yield to them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Final

from fermata.router.core.engine import Engine
from fermata.router.core.events import HIGHEST
from fermata.router.core.fairness.shares import FairAdmission
from fermata.router.core.queries.query import Query


@dataclass(frozen=True, slots=True)
class YieldRules:
    """Who yields, and how much."""

    room: float = 0.25
    """Part of the time that the door allows which is left to others."""
    near: float = 0.8
    """Whoever has less than this part of what the largest party has does not yield. So those who
    ask for much have the same in the end, however little others ask for."""
    above: float = 1.05
    """Nor does whoever has less than so many times the mean: where all have the same, none does."""
    absent: float = 0.001
    """Parties with less than this part of the largest one's have left."""
    look_ns: int = 100_000_000
    """How often all parties are looked at, at most."""
    memory_ns: int = 1_000_000_000
    scarce: float = 0.03
    """Part of the queries refused from which on some yield: below, there is enough for all."""


RULES: Final = YieldRules()


class DoorShares:
    """What tenants, or clients where there are none, were lately given by the fair shares of the
    applications that run stages: backend time of their queries' requests, and of their own.

    Whoever was given the most finds the door closed earlier, while some of the time that it allows
    is left. So the others find it open, and nobody is let in who could not end in time. A party
    that is alone, and parties that all have the same, have all of the time. So has everyone while
    hardly any query is refused.
    """

    __slots__ = (
        "applications",
        "asked",
        "engine",
        "level",
        "look_at_ns",
        "looked_at_ns",
        "refused",
        "rules",
    )

    def __init__(
        self, engine: Engine, applications: Collection[int], rules: YieldRules = RULES
    ) -> None:
        self.engine = engine
        self.applications = applications
        self.rules = rules
        self.level = inf
        """Backends kept busy for a party from which on it yields."""
        self.look_at_ns = self.looked_at_ns = 0
        self.asked = self.refused = 0.0
        """Queries lately, of all parties."""

    def count(self, refused: bool) -> None:
        """A query came to the door."""
        self.asked += 1.0
        self.refused += refused

    def yields(self, now_ns: int, query: Query) -> bool:
        """Whether others go before this query's party."""
        if now_ns >= self.look_at_ns:
            scarce = self._is_scarce(now_ns)
            self.level = self._level(now_ns, self._admissions()) if scarce else inf
        if self.level == inf:
            return False
        admissions = self._admissions()
        party, urgent = query.tenant or query.client, query.priority == HIGHEST
        return sum(each.lately(now_ns, party, urgent) for each in admissions) >= self.level

    def _admissions(self) -> list[FairAdmission]:
        found = map(self.engine.admissions.__getitem__, self.applications)
        return [each for each in found if isinstance(each, FairAdmission)]

    def _is_scarce(self, now_ns: int) -> bool:
        """Whether many were lately refused; a good time to forget those before."""
        rules = self.rules
        self.look_at_ns = now_ns + rules.look_ns
        scarce = self.refused > rules.scarce * self.asked
        faded = exp((self.looked_at_ns - now_ns) / rules.memory_ns)
        self.asked *= faded
        self.refused *= faded
        self.looked_at_ns = now_ns
        return scarce

    def _level(self, now_ns: int, admissions: Sequence[FairAdmission]) -> float:
        given: dict[int, float] = {}
        for admission in admissions:
            for party in admission.clients:
                given[party] = given.get(party, 0.0) + admission.lately(now_ns, party)
        most = max(given.values(), default=0.0)
        there = [each for each in given.values() if each > self.rules.absent * most]
        if len(there) < 2:
            return inf
        return max(self.rules.near * most, self.rules.above * sum(there) / len(there))
