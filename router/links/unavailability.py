"""Causes for which applications are not served: a code for programs, and a detail for people."""

import enum

import msgspec


class UnavailableCause(enum.IntEnum):
    """Causes; on the wire in `Unavailable`, so numbers keep their meaning."""

    OTHER = 0
    """A cause that this version does not know."""
    UNLOADED = 1
    """No backend holds all of its variants."""
    LOADING = 2
    """A client has asked for it, and no backend holds it yet."""
    LOAD_FAILED = 3
    QUARANTINED = 4
    """It has crashed one backend after the other."""
    WITHDRAWN = 5
    """The control plane has ended its trial."""

    @classmethod
    def _missing_(cls, value: object) -> "UnavailableCause":
        """Take a newer peer's cause for one without a meaning here."""
        return cls.OTHER


_TEXTS = {
    UnavailableCause.OTHER: "it is not available",
    UnavailableCause.UNLOADED: "it is not loaded",
    UnavailableCause.LOADING: "it is being loaded",
    UnavailableCause.LOAD_FAILED: "it could not be loaded",
    UnavailableCause.QUARANTINED: "it is in quarantine",
    UnavailableCause.WITHDRAWN: "withdrawn",
}


class Unavailability(msgspec.Struct, array_like=True, frozen=True):
    """The state of an application that is not served."""

    cause: UnavailableCause
    detail: str = ""

    def __str__(self) -> str:
        text = _TEXTS[self.cause]
        return f"{text}: {self.detail}" if self.detail else text


UNLOADED = Unavailability(UnavailableCause.UNLOADED)
LOADING = Unavailability(UnavailableCause.LOADING)
