"""Applications that can be served at all, as backends announce what they have loaded."""

from collections.abc import Collection, Iterable, Mapping

from fermata.router.links.unavailability import (
    LOADING,
    UNLOADED,
    Unavailability,
    UnavailableCause,
)


class Availability:
    """Pure. An application is unavailable while no backend has all of its variants.

    A lost backend makes none unavailable: it comes back, or others are started. Until then requests
    wait as long as they may.
    """

    def __init__(self, variants: Mapping[str, tuple[str, ...]]) -> None:
        self.variants = variants
        """By application."""
        self.held: dict[int, frozenset[str]] = {}
        """Variants that each backend has announced."""
        self.announced: dict[int, list[str]] = {}
        """The same in order; a list is replaced, and never changed."""
        self.wanted_by: dict[str, list[str]] = {}
        """Applications that each variant belongs to."""
        for application, names in variants.items():
            for name in names:
                self.wanted_by.setdefault(name, []).append(application)
        self.whole = dict.fromkeys(variants, 0)
        """Backends that have all variants, by application."""
        self.counted: set[int] = set()
        self.serving = dict.fromkeys(variants, 0)
        """The same of the backends that were asked about last."""
        self.missing = set(variants)
        """Applications that none of these has."""
        self.order = {application: place for place, application in enumerate(variants)}
        self.doubtful = set(variants)
        """Applications to look at when a backend announces itself next."""
        self.unwanted: set[str] = set()
        """Applications that a client has had unloaded, or that were withdrawn."""
        self.quarantined: set[str] = set()
        """Applications in quarantine."""
        self.unavailable: dict[str, Unavailability] = {}
        """By application."""

    def on_ask(self, application: str, load: bool) -> bool:
        """Have it loaded or unloaded for a client; returns whether anything has changed."""
        if load:
            self.unwanted.discard(application)
            self.doubtful.add(application)
            if application not in self.unavailable:
                return False
            self.unavailable[application] = LOADING
        else:
            self.unwanted.add(application)
            self.unavailable[application] = UNLOADED
        return True

    def withdraw(self, application: str, reason: str) -> None:
        """Serve it no more, though backends hold it, until a client asks for it again."""
        self.unwanted.add(application)
        self.unavailable[application] = Unavailability(UnavailableCause.WITHDRAWN, reason)

    def quarantine(self, application: str, reason: str) -> None:
        """Have no backend run it, loaded or not, until it is released."""
        self.quarantined.add(application)
        self.unavailable[application] = Unavailability(UnavailableCause.QUARANTINED, reason)

    def release(self, application: str) -> bool:
        """Let it be tried again; returns whether anything has changed."""
        if application not in self.quarantined:
            return False
        self.quarantined.discard(application)
        self.doubtful.add(application)
        if application not in self.unwanted:
            del self.unavailable[application]
        return True

    def on_ready(
        self, backend: int, held: Collection[str], trouble: Mapping[str, str] | None = None
    ) -> bool:
        """Note what a backend holds, and what it could not load; returns whether anything has
        changed."""
        before, after = self.held.get(backend, frozenset()), frozenset(held)
        if before != after or backend not in self.held:
            self.announced[backend] = sorted(after)
        self.held[backend] = after
        self._count(before, after, self.whole)
        if backend in self.counted:
            self._count(before, after, self.serving)
        self.doubtful.update(self._with(before ^ after))
        failed = trouble or {}
        touched = self.doubtful | self._with(failed)
        self.doubtful = set()
        news = [self._judge(application, failed) for application in sorted(touched)]
        return True in news

    def _judge(self, application: str, trouble: Mapping[str, str]) -> bool:
        """Find out whether an application is available; returns whether that is new."""
        if application in self.unwanted or application in self.quarantined:
            return False
        before = self.unavailable.get(application)
        if self.whole[application]:
            self.unavailable.pop(application, None)
            return before is not None
        reasons = [trouble[name] for name in self.variants[application] if name in trouble]
        if reasons:
            failed = Unavailability(UnavailableCause.LOAD_FAILED, reasons[0])
            self.unavailable[application] = failed
        else:
            self.unavailable.setdefault(application, UNLOADED)
        return self.unavailable[application] != before

    def _with(self, variants: Iterable[str]) -> set[str]:
        """The applications that some of these variants belong to."""
        return {
            application for variant in variants for application in self.wanted_by.get(variant, ())
        }

    def _count(self, before: frozenset[str], after: frozenset[str], whole: dict[str, int]) -> None:
        """Count a backend that held some variants and holds others now."""
        for application in self._with(before ^ after):
            wanted = self.variants[application]
            whole[application] += after.issuperset(wanted) - before.issuperset(wanted)
            if whole is self.serving and whole[application]:
                self.missing.discard(application)
            elif whole is self.serving:
                self.missing.add(application)

    def not_loaded(self, backends: Iterable[int]) -> list[str]:
        """Applications that none of these backends could run now."""
        counted, nothing = set(backends), frozenset[str]()
        # Only who has come or gone since the last call is looked at.
        for backend in self.counted ^ counted:
            held = self.held.get(backend, nothing)
            if backend in counted:
                self._count(nothing, held, self.serving)
            else:
                self._count(held, nothing, self.serving)
        self.counted = counted
        return sorted(self.missing, key=self.order.__getitem__)

    def names(self, backend: int) -> list[str]:
        """Variants that a backend has announced, in order."""
        return self.announced.get(backend, [])

    def needs(self, backend: int) -> bool:
        """Whether one of those counted last alone could run some application."""
        held = self.held.get(backend, frozenset())
        return any(
            self.serving[application] == 1 and held.issuperset(self.variants[application])
            for application in self._with(held)
        )

    def on_backend_down(self, backend: int) -> None:
        """Forget a backend; no application becomes unavailable for that."""
        held, nothing = self.held.pop(backend, frozenset()), frozenset[str]()
        self.announced.pop(backend, None)
        self._count(held, nothing, self.whole)
        if backend in self.counted:
            self.counted.discard(backend)
            self._count(held, nothing, self.serving)
        # Where nobody else has it, the next one that comes without it makes it unavailable.
        self.doubtful.update(self._with(held))
