"""The ledger of a load: each request was sent once, and answered once or not at all."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fermata.clients.load.arrivals import SendTimes, Times

OPEN, OK, UNSENT, LOST = "OPEN", "OK", "UNSENT", "LOST"


@dataclass(slots=True)
class LoadLedger:
    """One row a request; times from the start of the load, -1 where it has not come to that."""

    scheduled_ns: Times
    target: Times
    client: Times
    sent_ns: Times
    answered_ns: Times
    outcome: Times
    """Index into `outcomes`."""
    batch: Times
    outcomes: list[str] = field(default_factory=lambda: [OPEN, OK, UNSENT, LOST])
    duplicates: int = 0
    """Answers to what had been answered."""
    strangers: int = 0
    """Answers to what was never sent."""
    messages: dict[str, str] = field(default_factory=dict)
    """An example of what was said, for each outcome but OK."""
    stopped_ns: int | None = None
    """From when on nothing was sent, where the load was stopped before its end."""

    @classmethod
    def of(cls, arrivals: SendTimes) -> "LoadLedger":
        count = len(arrivals)
        none = np.full(count, -1, np.int64)
        zeros = np.zeros(count, np.int64)
        return cls(
            arrivals.at_ns,
            arrivals.target,
            arrivals.client,
            none.copy(),
            none.copy(),
            zeros.copy(),
            zeros.copy(),
        )

    def send(self, index: int, now_ns: int) -> None:
        assert self.sent_ns[index] < 0, f"request {index} is sent twice"
        self.sent_ns[index] = now_ns

    def skip(self, index: int) -> None:
        """It could not leave before its deadline; it counts as bad."""
        self.outcome[index] = self._code(UNSENT)

    def answer(self, index: int, now_ns: int, outcome: str, message: str = "") -> bool:
        """Enter an answer; False when it is none that was waited for."""
        if not 0 <= index < len(self.sent_ns) or self.sent_ns[index] < 0:
            self.strangers += 1
            return False
        if self.answered_ns[index] >= 0:
            self.duplicates += 1
            return False
        self.answered_ns[index] = now_ns
        self.outcome[index] = self._code(outcome)
        if message:
            self.messages.setdefault(outcome, message)
        return True

    def close(self) -> None:
        """Requests that have no answer by now are lost."""
        unsent = (self.outcome == 0) & (self.sent_ns < 0)
        self.outcome[unsent] = self._code(UNSENT)
        self.outcome[self.outcome == 0] = self._code(LOST)

    def _code(self, outcome: str) -> int:
        if outcome not in self.outcomes:
            self.outcomes.append(outcome)
        return self.outcomes.index(outcome)

    def mask(self, outcome: str) -> Any:
        """Which rows ended like this."""
        code = self.outcomes.index(outcome) if outcome in self.outcomes else -1
        return self.outcome == code


def merge(parts: list[LoadLedger]) -> LoadLedger:
    """The ledgers of several processes as one in order of schedule, until the first stopped."""
    outcomes = parts[0].outcomes[:]
    for part in parts:
        outcomes += [each for each in part.outcomes if each not in outcomes]
    codes = [np.array([outcomes.index(each) for each in part.outcomes]) for part in parts]
    scheduled_ns = np.concatenate([part.scheduled_ns for part in parts])
    order = np.argsort(scheduled_ns, kind="stable")
    stopped_ns = min((at for part in parts if (at := part.stopped_ns) is not None), default=None)
    if stopped_ns is not None:
        order = order[: np.searchsorted(scheduled_ns[order], stopped_ns)]

    def joined(name: str) -> Times:
        column: Times = np.concatenate([getattr(part, name) for part in parts])[order]
        return column

    outcome = np.concatenate([code[part.outcome] for code, part in zip(codes, parts, strict=True)])
    messages: dict[str, str] = {}
    for part in parts:
        messages = {**part.messages, **messages}
    return LoadLedger(
        joined("scheduled_ns"),
        joined("target"),
        joined("client"),
        joined("sent_ns"),
        joined("answered_ns"),
        outcome[order],
        joined("batch"),
        outcomes,
        sum(part.duplicates for part in parts),
        sum(part.strangers for part in parts),
        messages,
        stopped_ns,
    )
