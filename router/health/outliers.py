"""Outlier detection: ejects backends for their errors, and has them tried again.

Pure. As Envoy's outlier detection: a backend is ejected for errors in a row, for longer each time,
and no more than a share of its peers at once. Afterwards it is given one batch, which decides.
"""

from dataclasses import dataclass, field

from fermata.foundation.units import NEVER, seconds


@dataclass(frozen=True, slots=True)
class OutlierRules:
    """Limits of errors, and lengths of ejections."""

    consecutive_errors: int = 5
    """Batches in a row that failed on a backend and then ran well elsewhere."""
    ejected_share_max: float = 0.5
    """Peers of a backend, over all of them: a model that fails now and then must not empty the
    fleet."""
    hopeless_errors: int = 20
    """In a row: such a backend serves no requests, and is ejected beyond that share if peers are
    left."""
    eject_ns: int = seconds(10)
    """The first ejection; each further one is longer by as much, and is forgotten after as much
    time of good service."""
    eject_ns_max: int = seconds(300)


@dataclass(slots=True)
class ErrorRecord:
    """The errors of one backend."""

    errors: int = 0
    """In a row."""
    ejections: int = 0
    ejected_until_ns: int = 0
    """0: it is not ejected."""
    given_back_at_ns: int = 0
    trial: bool = False
    """It was given back, and has not run anything well since."""
    verdict_pending: bool = False
    """Its trial has failed, and where the blame lies is not known yet."""


@dataclass(slots=True)
class UntriedErrors:
    """Errors of batches that could not be tried elsewhere, for want of time.

    Such an error counts only if the application's batches on other backends ended well right before
    and right after it. Bad inputs that come in a row spoil batches on other backends too.
    """

    wells: dict[int, int] = field(default_factory=dict)
    """By application: batches that ended well."""
    failed: dict[int, dict[int, int]] = field(default_factory=dict)
    """By application and backend: how many had ended well when its last one failed there."""
    waiting: dict[int, set[int]] = field(default_factory=dict)
    """By application: backends whose error counts if the next batch elsewhere ends well."""

    def on_success(self, backend: int, application: int) -> list[int]:
        """A batch ended well; backends whose error counts for that."""
        self.wells[application] = self.wells.get(application, 0) + 1
        if not self.waiting:
            return []
        waiting = self.waiting.pop(application, set())
        return sorted(waiting - {backend})

    def on_failure(self, backend: int, application: int) -> None:
        """A batch failed, wherever the blame lies."""
        failed = self.failed.setdefault(application, {})
        failed[backend] = self.wells.get(application, 0)
        if application in self.waiting:
            self.waiting[application] &= {backend}

    def on_untried(self, backend: int, application: int) -> None:
        """A batch that failed could not be tried elsewhere."""
        wells = self.wells.get(application, 0)
        failed = self.failed.get(application, {})
        if not any(at == wells for each, at in failed.items() if each != backend):
            self.waiting.setdefault(application, set()).add(backend)

    def on_gone(self, backend: int) -> None:
        for failed in self.failed.values():
            failed.pop(backend, None)
        for waiting in self.waiting.values():
            waiting.discard(backend)


@dataclass(slots=True)
class Outliers:
    """Records of backends that have failed of late, and those of them that are ejected."""

    rules: OutlierRules = field(default_factory=OutlierRules)
    records: dict[int, ErrorRecord] = field(default_factory=dict)
    ejected: dict[int, str] = field(default_factory=dict)
    """Why, by backend."""

    def on_success(self, backend: int) -> None:
        """A batch ran well there."""
        record = self.records.get(backend)
        if record is not None:
            record.errors = 0
            record.trial = False

    def on_error(self, backend: int) -> str:
        """A batch failed there and ran well elsewhere; why it should be ejected, or nothing."""
        record = self.records.setdefault(backend, ErrorRecord())
        record.errors += 1
        if record.errors < self.rules.consecutive_errors:
            return ""
        return f"{record.errors} batches in a row failed here and ran well elsewhere"

    def may_eject(self, backend: int, peers: int, ejected: int) -> bool:
        """Whether a backend may be ejected, of so many peers of which so many are."""
        record = self.records.get(backend)
        hopeless = record is not None and record.errors >= self.rules.hopeless_errors
        most = peers - 1 if hopeless else int(self.rules.ejected_share_max * peers)
        return ejected < most

    def on_trial(self, backend: int) -> bool:
        record = self.records.get(backend)
        return record is not None and record.trial

    def takes_verdict(self, backend: int) -> bool:
        """Note a verdict on an error there; whether its failed trial waited for that."""
        record = self.records.get(backend)
        if record is None or not record.verdict_pending:
            return False
        record.verdict_pending = False
        return True

    def eject(self, now_ns: int, backend: int, reason: str) -> None:
        rules, record = self.rules, self.records.setdefault(backend, ErrorRecord())
        if not record.trial:
            served_ns = now_ns - record.given_back_at_ns
            record.ejections = max(0, record.ejections - served_ns // rules.eject_ns)
        record.ejections += 1
        record.verdict_pending, record.trial = record.trial, False
        length_ns = min(record.ejections * rules.eject_ns, rules.eject_ns_max)
        record.ejected_until_ns = now_ns + length_ns
        self.ejected[backend] = reason

    def repeat_trial(self, now_ns: int, backend: int) -> None:
        """Its trial has failed through no fault of its own: let it be tried again now."""
        self.records[backend].ejections -= 1
        self.give_back(now_ns, backend)

    def give_back(self, now_ns: int, backend: int) -> None:
        """Let it be tried again."""
        record = self.records[backend]
        record.trial, record.verdict_pending = True, False
        record.errors = record.ejected_until_ns = 0
        record.given_back_at_ns = now_ns
        del self.ejected[backend]

    def due(self, now_ns: int) -> list[int]:
        """Backends to be given back by now."""
        return [each for each in self.ejected if self.records[each].ejected_until_ns <= now_ns]

    def wake_at_ns(self) -> int:
        """The time at which the first one is due; `NEVER` where none is ejected."""
        if not self.ejected:
            return NEVER
        waits = [self.records[each].ejected_until_ns for each in self.ejected]
        return min(waits)

    def on_gone(self, backend: int) -> None:
        self.records.pop(backend, None)
        self.ejected.pop(backend, None)
