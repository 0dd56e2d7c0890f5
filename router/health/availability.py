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
        if application not in self.unwanted:
            del self.unavailable[application]
        return True

    def on_ready(
        self, backend: int, held: Collection[str], trouble: Mapping[str, str] | None = None
    ) -> bool:
        """Note what a backend holds, and what it could not load; returns whether anything has
        changed."""
        self.held[backend] = frozenset(held)
        before = dict(self.unavailable)
        for application, wanted in self.variants.items():
            if application in self.unwanted or application in self.quarantined:
                continue
            if any(each.issuperset(wanted) for each in self.held.values()):
                self.unavailable.pop(application, None)
                continue
            reasons = [trouble[name] for name in wanted if name in trouble] if trouble else []
            if reasons:
                failed = Unavailability(UnavailableCause.LOAD_FAILED, reasons[0])
                self.unavailable[application] = failed
            else:
                self.unavailable.setdefault(application, UNLOADED)
        return self.unavailable != before

    def not_loaded(self, backends: Iterable[int]) -> list[str]:
        """Applications that none of these backends could run now."""
        held = [self.held.get(each, frozenset()) for each in backends]
        return [
            application
            for application, wanted in self.variants.items()
            if not any(each.issuperset(wanted) for each in held)
        ]

    def on_backend_down(self, backend: int) -> None:
        """Forget a backend; no application becomes unavailable for that."""
        self.held.pop(backend, None)
