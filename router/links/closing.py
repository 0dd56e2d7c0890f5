"""The end of a link: a code that programs act on, and a detail for people."""

import enum
from dataclasses import dataclass

DETAIL_MAX = 300
"""Characters of a peer's own words that are kept."""


class CloseCode(enum.IntEnum):
    """Reasons for the end of a link; on the wire in `Goodbye`, so numbers keep their meaning."""

    OTHER = 0
    """A reason that this version does not know."""
    SHUTDOWN = 1
    """The process ends in order."""
    SUPERSEDED = 2
    """Another link, or another process, has taken its place."""
    STALE = 3
    """The router's term is below one that the other end has met."""
    PROTOCOL = 4
    """The two ends speak different versions."""
    UNPROVEN = 5
    """The peer did not prove that it knows the deployment's secret."""
    WRONG_ROLE = 6
    """The peer's role may not link here, or may not send what it sent."""
    MISDIRECTED = 7
    """The peer meant to reach another address, or another process."""
    MALFORMED = 8
    SILENT = 9
    LOST = 10
    """The connection ended without a word."""
    CONGESTED = 11
    """The peer does not read."""
    OVERDUE = 12
    """The peer's batch should have ended long ago."""
    CROWDED = 13
    """Too many peers have not proven themselves."""
    REFUSED = 14
    """Any other refusal, with the cause in its detail."""

    @classmethod
    def _missing_(cls, value: object) -> "CloseCode":
        """Take a newer peer's code for one without a meaning here."""
        return cls.OTHER

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


UNMEANT = frozenset(
    (
        CloseCode.LOST,
        CloseCode.SILENT,
        CloseCode.CONGESTED,
        CloseCode.MALFORMED,
        CloseCode.OVERDUE,
    )
)
"""Codes for peers that should have stayed."""


@dataclass(frozen=True, slots=True)
class Closed:
    """End of a link, as one of its two ends knows it."""

    code: CloseCode
    detail: str
    by_peer: bool = False
    """The peer said so; a peer that has not proven itself is never quoted with a code."""
    term: int = 0
    """Term of the newer router, with the code STALE."""

    @property
    def unmeant(self) -> bool:
        return not self.by_peer and self.code in UNMEANT

    def __str__(self) -> str:
        said = f"{self.code.label}: {self.detail}"
        return f"goodbye: {said}" if self.by_peer else said


def quoted(words: str) -> str:
    """Words of a peer, fit for a line of a log."""
    return "".join(each if each.isprintable() else "?" for each in words[:DETAIL_MAX])
