"""Suspects: tenants and clients whose inputs may hang backends.

Pure. A batch that hangs names everyone in it. From then on each of them runs apart from others, so
that the next hang names one alone. Whoever hangs one backend after the other is refused for a
while.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from fermata.foundation.units import seconds

Party = tuple[int, int]
"""An application, and a tenant or client of it."""


@dataclass(frozen=True, slots=True)
class SuspectRules:
    """Limits of suspicion, and lengths of refusals."""

    hangs: int = 3
    """Backends that hung on a party's inputs, one of them on nobody else's."""
    apart_ns: int = seconds(10)
    """For which everyone of a batch that hung runs apart."""
    proven_ns: int = seconds(600)
    """The same for a party whose inputs alone have hung a backend."""
    refuse_ns: int = seconds(60)
    """The first refusal; each further one is twice as long."""
    refuse_ns_max: int = seconds(3600)
    errors: int = 3
    """Parts of batches that failed within `apart_ns`: everyone in them runs apart for as long."""
    parties_max: int = 1000


@dataclass(slots=True)
class SuspectRecord:
    """Hangs of one party."""

    hangs: int = 0
    proven: bool = False
    """A batch of nobody else's has hung."""
    errors: int = 0
    errors_since_ns: int = 0
    apart_until_ns: int = 0
    refused_until_ns: int = 0
    refuse_ns: int = 0
    """Length of the last refusal."""


@dataclass(slots=True)
class Suspects:
    """Records of parties that were in a batch that hung, the latest last."""

    rules: SuspectRules = field(default_factory=SuspectRules)
    records: dict[Party, SuspectRecord] = field(default_factory=dict)

    def on_hang(
        self, now_ns: int, application: int, parties: Collection[int]
    ) -> tuple[bool, list[int]]:
        """Note who was in a batch that hung; 0 stands for those without a name. Returns whether it
        is news that the model may hang, and the parties that are refused from now on."""
        named = [each for each in parties if each]
        alone = len(parties) == 1
        refused: list[int] = []
        news = not (alone and named)
        for party in named:
            record = self._record(now_ns, (application, party))
            record.hangs += 1
            news = news or (alone and not record.proven)
            record.proven = record.proven or alone
            length_ns = self.rules.proven_ns if record.proven else self.rules.apart_ns
            record.apart_until_ns = now_ns + length_ns
            if record.proven and record.hangs >= self.rules.hangs:
                self._refuse(now_ns, record)
                refused.append(party)
        return news, refused

    def on_error(self, now_ns: int, application: int, parties: Collection[int]) -> None:
        """Note who was in a part of a batch that failed, wherever it ran. Nobody is refused for
        that; but whoever is in several is kept from spoiling the batches of others."""
        rules = self.rules
        for party in parties:
            if not party:
                continue
            record = self._record(now_ns, (application, party))
            if now_ns - record.errors_since_ns > rules.apart_ns:
                record.errors, record.errors_since_ns = 0, now_ns
            record.errors += 1
            if record.errors >= rules.errors:
                until_ns = now_ns + rules.apart_ns
                record.apart_until_ns = max(record.apart_until_ns, until_ns)

    def _record(self, now_ns: int, key: Party) -> SuspectRecord:
        record = self.records.pop(key, None)
        if record is None:
            record = SuspectRecord()
        elif record.hangs and max(record.apart_until_ns, record.refused_until_ns) <= now_ns:
            # A suspect that has not hung for so long has done its time.
            record.hangs, record.proven = 0, False
        self.records[key] = record
        if len(self.records) > self.rules.parties_max:
            del self.records[next(iter(self.records))]
        return record

    def _refuse(self, now_ns: int, record: SuspectRecord) -> None:
        rules = self.rules
        record.refuse_ns = min(2 * record.refuse_ns or rules.refuse_ns, rules.refuse_ns_max)
        record.refused_until_ns = now_ns + record.refuse_ns
        # Afterwards it is watched; one more is enough.
        record.apart_until_ns = record.refused_until_ns + rules.proven_ns
        record.hangs = rules.hangs - 1

    def is_apart(self, now_ns: int, application: int, party: int) -> bool:
        """Whether requests of this party meet with nobody else's."""
        record = self.records.get((application, party))
        return record is not None and now_ns < record.apart_until_ns

    def refused_ns(self, now_ns: int, application: int, party: int) -> int:
        """Time for which a party is still refused; 0 where it is not."""
        record = self.records.get((application, party))
        return 0 if record is None else max(0, record.refused_until_ns - now_ns)
