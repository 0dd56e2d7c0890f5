"""Decides which backends to retire and which models to quarantine.

Pure. A backend is judged by its peers, a model by its own batches: a model that fails everywhere
says nothing about a backend, and a machine that is switched off nothing about a model.
"""

from dataclasses import dataclass, field

from fermata.foundation.units import NEVER, seconds


@dataclass(frozen=True, slots=True)
class QuarantineRules:
    """Limits of backends and models, and lengths of quarantines."""

    slow_factor: float = 2.0
    """Run time over that of its peers; below it a backend is planned with its own factor."""
    slow_batches: int = 32
    """Slow batches in a row."""
    failed_batches: int = 8
    """Failed batches in a row, while as many succeed elsewhere."""
    crashes: int = 3
    """Processes that a model has taken with it."""
    crash_batches_max: int = 10
    """Batches of it that succeeded since the first crash; with more the model is not to blame."""
    together_ns: int = seconds(1)
    """Within that, losses of one machine are one crash: it may have been switched off."""
    suspects_max: int = 100
    quarantine_ns: int = seconds(60)
    """The first quarantine; each further one is twice as long."""
    quarantine_ns_max: int = seconds(3600)


@dataclass(slots=True)
class Failures:
    """Failures of one application on one backend."""

    successes_before: int
    """Successes of the application when they began."""
    count: int = 0


@dataclass(slots=True)
class BackendRecord:
    """The record of one backend."""

    slow: int = 0
    failed: dict[int, Failures] = field(default_factory=dict)
    """In a row, by application."""


@dataclass(slots=True)
class CrashRecord:
    """The record of one application."""

    crashes: int = 0
    crashed_at_ns: dict[str, int] = field(default_factory=dict)
    """By machine: when the losses began there that count as one."""
    good: int = 0
    quarantine_ns: int = 0
    """Length of the next quarantine; 0: that of the first."""
    until_ns: int = 0


@dataclass(slots=True)
class Quarantine:
    """Recent records."""

    rules: QuarantineRules = field(default_factory=QuarantineRules)
    backends: dict[int, BackendRecord] = field(default_factory=dict)
    applications: dict[int, CrashRecord] = field(default_factory=dict)
    successes: dict[int, int] = field(default_factory=dict)
    """By application: batches that succeeded, less some for each that failed on a backend which
    then did well. That one was not the backend's fault."""
    suspects: dict[int, int] = field(default_factory=dict)
    """Applications that lost backends ran; one that comes back had only lost its link."""

    # Backends

    def on_done(self, backend: int, application: int, factor: float, failed: bool) -> str:
        """Judge a backend by a batch; returns why it should be replaced, or nothing."""
        if failed:
            return self.on_error(backend, application)
        record = self.backends.setdefault(backend, BackendRecord())
        self._succeeded(record, application)
        record.slow = record.slow + 1 if factor >= self.rules.slow_factor else 0
        if record.slow >= self.rules.slow_batches:
            return f"it takes {factor:.1f} times as long as its peers"
        return ""

    def on_error(self, backend: int, application: int) -> str:
        """Count a failed batch that could not be tried elsewhere; returns why its backend is to
        blame for it, or nothing."""
        record = self.backends.setdefault(backend, BackendRecord())
        count = self._failed(record, application)
        if count >= self.rules.failed_batches:
            return f"{count} batches in a row failed here, and none elsewhere"
        return ""

    def _failed(self, record: BackendRecord, application: int) -> int:
        """Failures in a row there, of applications that succeed elsewhere."""
        successes, needed = self.successes, self.rules.failed_batches
        here = record.failed.setdefault(application, Failures(successes.get(application, 0)))
        here.count += 1
        return sum(
            each.count
            for number, each in record.failed.items()
            if successes.get(number, 0) - each.successes_before >= needed
        )

    def _succeeded(self, record: BackendRecord, application: int) -> None:
        successes, needed = self.successes, self.rules.failed_batches
        for number, each in record.failed.items():
            successes[number] = successes.get(number, 0) - needed * each.count
        record.failed.clear()
        successes[application] = successes.get(application, 0) + 1
        model = self.applications.get(application)
        if model is not None:
            model.good += 1

    def on_up(self, now_ns: int, backend: int) -> None:
        """Take a backend in; if it seemed dead, no model has killed it."""
        application = self.suspects.pop(backend, -1)
        model = self.applications.get(application)
        if model is None:
            return
        model.crashes = max(0, model.crashes - 1)
        if model.until_ns > now_ns and model.crashes < self.rules.crashes:
            model.until_ns = now_ns
            model.quarantine_ns //= 2

    def on_gone(self, backend: int) -> None:
        self.backends.pop(backend, None)

    # Models

    def on_crash(self, now_ns: int, backend: int, application: int, machine: str = "") -> str:
        """Count a backend that died while it ran this; returns why it is quarantined, or nothing.
        Without the name of its machine it died alone."""
        rules, model = self.rules, self.applications.setdefault(application, CrashRecord())
        if machine:
            began, earlier_ns = model.crashed_at_ns, now_ns - rules.together_ns
            for each in [each for each, at_ns in began.items() if at_ns <= earlier_ns]:
                del began[each]
            if machine in began:
                return ""
            began[machine] = now_ns
        if model.good > rules.crash_batches_max:
            model.crashes = model.good = model.quarantine_ns = 0
        model.crashes += 1
        self.suspects[backend] = application
        if len(self.suspects) > rules.suspects_max:
            del self.suspects[next(iter(self.suspects))]
        if model.crashes < rules.crashes or model.until_ns > now_ns:
            return ""
        length_ns = max(rules.quarantine_ns, model.quarantine_ns)
        model.until_ns = now_ns + length_ns
        model.quarantine_ns = min(2 * length_ns, rules.quarantine_ns_max)
        return f"it has crashed {rules.crashes} backends in a row"

    def is_quarantined(self, now_ns: int, application: int) -> bool:
        model = self.applications.get(application)
        return model is not None and now_ns < model.until_ns

    def wake_at_ns(self) -> int:
        """The time of the next call to `released`."""
        waits = [each.until_ns for each in self.applications.values() if each.until_ns > 0]
        return min(waits, default=NEVER)

    def released(self, now_ns: int) -> list[int]:
        """Applications that may be tried again from now on."""
        found = [
            number for number, each in self.applications.items() if 0 < each.until_ns <= now_ns
        ]
        for number in found:
            model = self.applications[number]
            model.until_ns = model.crashes = model.good = 0
        return found
