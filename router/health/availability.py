"""Which applications somebody can serve at all, as backends announce what they have loaded."""

from collections.abc import Collection, Iterable, Mapping

UNLOADED = "it is not loaded"
LOADING = "it is being loaded"
FAILED = "it could not be loaded: "
QUARANTINED = "it is in quarantine: "


class Availability:
    """Pure. An application is absent while no backend has all of its variants.

    A backend that is lost takes nothing away: it comes back, or others are being started, and until
    then requests wait as long as they may.
    """

    def __init__(self, variants: Mapping[str, tuple[str, ...]]) -> None:
        self.variants = variants
        """By application."""
        self.held: dict[int, frozenset[str]] = {}
        """Variants that each backend has announced."""
        self.unwanted: set[str] = set()
        """Applications that a client has had unloaded, or that were withdrawn."""
        self.barred: set[str] = set()
        """Applications in quarantine."""
        self.absent: dict[str, str] = {}
        """Why, by application."""

    def on_ask(self, application: str, load: bool) -> bool:
        """A client wants it loaded, or not any more; returns whether anything has changed."""
        if load:
            self.unwanted.discard(application)
            if application not in self.absent:
                return False
            self.absent[application] = LOADING
        else:
            self.unwanted.add(application)
            self.absent[application] = UNLOADED
        return True

    def withdraw(self, application: str, reason: str) -> None:
        """Serve it no more, though backends hold it, until a client asks for it again."""
        self.unwanted.add(application)
        self.absent[application] = reason

    def quarantine(self, application: str, reason: str) -> None:
        """Nobody is to run it, loaded or not, until it is released."""
        self.barred.add(application)
        self.absent[application] = QUARANTINED + reason

    def release(self, application: str) -> bool:
        """It may be tried again; returns whether anything has changed."""
        if application not in self.barred:
            return False
        self.barred.discard(application)
        if application not in self.unwanted:
            del self.absent[application]
        return True

    def on_ready(
        self, backend: int, held: Collection[str], trouble: Mapping[str, str] | None = None
    ) -> bool:
        """A backend has told what it holds, and what it could not load; whether that changes
        anything."""
        self.held[backend] = frozenset(held)
        before = dict(self.absent)
        for application, wanted in self.variants.items():
            if application in self.unwanted or application in self.barred:
                continue
            if any(each.issuperset(wanted) for each in self.held.values()):
                self.absent.pop(application, None)
                continue
            reasons = [trouble[name] for name in wanted if name in trouble] if trouble else []
            if reasons:
                self.absent[application] = FAILED + reasons[0]
            else:
                self.absent.setdefault(application, UNLOADED)
        return self.absent != before

    def unheld(self, backends: Iterable[int]) -> list[str]:
        """Applications that none of these backends could run now."""
        held = [self.held.get(each, frozenset()) for each in backends]
        return [
            application
            for application, wanted in self.variants.items()
            if not any(each.issuperset(wanted) for each in held)
        ]

    def on_backend_down(self, backend: int) -> None:
        """It holds nothing any more; who was served is not called absent for that."""
        self.held.pop(backend, None)
