"""Taking turns: where not all can be served, nobody is left out for ever."""

from collections.abc import Iterable

from fermata.router.policies.jellyfish.problem import MappingPlan


class Rotation:
    """Counts for how many decisions each client has been served, or left out, in a row."""

    def __init__(self, turn: int) -> None:
        assert turn >= 1
        self.turn = turn
        """Decisions after which those left out and those served change places."""
        self.streaks: dict[int, int] = {}
        """By client: positive while served, negative while left out."""
        self.contested = False
        """Somebody was left out at the last decision."""

    def owed(self, clients: Iterable[int]) -> list[int]:
        """Clients whose turn has come, those who have waited longest first."""
        waiting = [each for each in clients if self.streaks.get(each, 0) <= -self.turn]
        return sorted(waiting, key=lambda each: (self.streaks[each], each))

    def kept(self) -> frozenset[int]:
        """Clients who have not had their whole turn yet; only where there is not enough for all."""
        if not self.contested:
            return frozenset()
        return frozenset(each for each, streak in self.streaks.items() if 0 < streak < self.turn)

    def leave_first(self, client: int) -> int:
        """Those who have been served longest make room first."""
        return -self.streaks.get(client, 0)

    def note(self, plan: MappingPlan) -> None:
        """Count one more decision; clients that are gone are forgotten."""
        streaks: dict[int, int] = {}
        for share in plan.shares:
            for client in share.clients:
                streaks[client.number] = max(0, self.streaks.get(client.number, 0)) + 1
        for client in plan.left_out:
            streaks[client.number] = min(0, self.streaks.get(client.number, 0)) - 1
        self.streaks = streaks
        self.contested = bool(plan.left_out)
