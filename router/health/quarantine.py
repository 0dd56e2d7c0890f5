"""Decides which backends to retire and which models to quarantine.

Pure. A backend is judged by its peers, a model by its own batches: a model that fails everywhere
says nothing about a backend, and a machine that is switched off nothing about a model.
"""

from dataclasses import dataclass, field

from fermata.foundation.units import NEVER, seconds

SLOW_FACTOR = 2.0
"""Times its peers; below that it is planned with its own factor and goes on."""
SLOW_BATCHES = 32
"""In a row."""
FAILED_BATCHES = 8
"""In a row, while as many succeed elsewhere."""
CRASHES = 3
"""Processes that a model has taken with it."""
CRASH_BATCHES = 10
"""Batches of it that ended well since the first of them; with more it is not the model."""
TOGETHER_NS = seconds(1)
"""Within that, losses of one machine are one crash: it may have been switched off."""
SUSPECTS_MAX = 100
REST_NS = seconds(60)
"""For which such a model is not served; twice as long each time."""
REST_NS_MAX = seconds(3600)


@dataclass(slots=True)
class Failures:
    """Failures of one application on one backend."""

    merit_before: int
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
    rest_ns: int = REST_NS
    until_ns: int = 0


@dataclass(slots=True)
class Quarantine:
    """Recent records."""

    backends: dict[int, BackendRecord] = field(default_factory=dict)
    applications: dict[int, CrashRecord] = field(default_factory=dict)
    merit: dict[int, int] = field(default_factory=dict)
    """By application: batches that ended well, less some for each that failed on a backend which
    then did well. That one was not the backend's fault."""
    suspects: dict[int, int] = field(default_factory=dict)
    """Applications that lost backends ran; one that comes back had only lost its link."""

    # Backends

    def on_done(self, backend: int, application: int, factor: float, failed: bool) -> str:
        """A batch has ended; why its backend should be replaced, or nothing."""
        if failed:
            return self.on_error(backend, application)
        conduct = self.backends.setdefault(backend, BackendRecord())
        self._succeeded(conduct, application)
        conduct.slow = conduct.slow + 1 if factor >= SLOW_FACTOR else 0
        if conduct.slow >= SLOW_BATCHES:
            return f"it takes {factor:.1f} times as long as its peers"
        return ""

    def on_error(self, backend: int, application: int) -> str:
        """A batch failed that could not be tried elsewhere; why its backend is to blame for it, or
        nothing."""
        conduct = self.backends.setdefault(backend, BackendRecord())
        count = self._failed(conduct, application)
        if count >= FAILED_BATCHES:
            return f"{count} batches in a row failed here, and none elsewhere"
        return ""

    def _failed(self, conduct: BackendRecord, application: int) -> int:
        """How many have failed there in a row of applications that fare well elsewhere."""
        merit = self.merit
        here = conduct.failed.setdefault(application, Failures(merit.get(application, 0)))
        here.count += 1
        return sum(
            each.count
            for number, each in conduct.failed.items()
            if merit.get(number, 0) - each.merit_before >= FAILED_BATCHES
        )

    def _succeeded(self, conduct: BackendRecord, application: int) -> None:
        merit = self.merit
        for number, each in conduct.failed.items():
            merit[number] = merit.get(number, 0) - FAILED_BATCHES * each.count
        conduct.failed.clear()
        merit[application] = merit.get(application, 0) + 1
        danger = self.applications.get(application)
        if danger is not None:
            danger.good += 1

    def on_up(self, now_ns: int, backend: int) -> None:
        """A backend is here; if it is one that seemed dead, no model has killed it."""
        application = self.suspects.pop(backend, -1)
        danger = self.applications.get(application)
        if danger is None:
            return
        danger.crashes = max(0, danger.crashes - 1)
        if danger.until_ns > now_ns and danger.crashes < CRASHES:
            danger.until_ns = now_ns
            danger.rest_ns = max(REST_NS, danger.rest_ns // 2)

    def on_gone(self, backend: int) -> None:
        self.backends.pop(backend, None)

    # Models

    def on_crash(self, now_ns: int, backend: int, application: int, machine: str = "") -> str:
        """A backend died while it ran this; why it must rest, or nothing. Without the name of
        its machine it died alone."""
        danger = self.applications.setdefault(application, CrashRecord())
        if machine:
            began = danger.crashed_at_ns
            for each in [each for each, at_ns in began.items() if at_ns <= now_ns - TOGETHER_NS]:
                del began[each]
            if machine in began:
                return ""
            began[machine] = now_ns
        if danger.good > CRASH_BATCHES:
            danger.crashes = danger.good = 0
            danger.rest_ns = REST_NS
        danger.crashes += 1
        self.suspects[backend] = application
        if len(self.suspects) > SUSPECTS_MAX:
            del self.suspects[next(iter(self.suspects))]
        if danger.crashes < CRASHES or danger.until_ns > now_ns:
            return ""
        danger.until_ns = now_ns + danger.rest_ns
        danger.rest_ns = min(2 * danger.rest_ns, REST_NS_MAX)
        return f"it has crashed {CRASHES} backends in a row"

    def rests(self, now_ns: int, application: int) -> bool:
        danger = self.applications.get(application)
        return danger is not None and now_ns < danger.until_ns

    def wake_at_ns(self) -> int:
        """When `rested` wants to be called."""
        waits = [each.until_ns for each in self.applications.values() if each.until_ns > 0]
        return min(waits, default=NEVER)

    def rested(self, now_ns: int) -> list[int]:
        """Applications that may be tried again from now on."""
        found = [
            number for number, each in self.applications.items() if 0 < each.until_ns <= now_ns
        ]
        for number in found:
            danger = self.applications[number]
            danger.until_ns = danger.crashes = danger.good = 0
        return found
