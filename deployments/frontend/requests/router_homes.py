"""The routers that a frontend's requests go to: which are linked, and whose turn it is. Pure."""

from collections.abc import Mapping, Sequence
from math import log

from fermata.foundation.units import NEVER
from fermata.router.links.directory import Directory, is_newer
from fermata.router.links.unavailability import Unavailability

NOWHERE = -1
"""Home of a request whose application has none, as far as this frontend knows."""
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class SplitApplication:
    """Turns of the homes of one application, by their shares."""

    __slots__ = ("credit", "homes", "sticky")

    def __init__(self, homes: Sequence[tuple[int, float]], sticky: bool) -> None:
        # A sub-cluster without a share has no backends for it, whoever else is away.
        self.homes = tuple(each for each in homes if each[1] > 0.0) or tuple(homes)
        self.sticky = sticky
        self.credit = dict.fromkeys((home for home, _ in self.homes), 0.0)

    def pick(self, client: int, linked: Sequence[int]) -> int:
        """The home of the next request; one that is linked where there is one."""
        here = [each for each in self.homes if linked[each[0]] >= 0] or self.homes
        if len(here) == 1:
            return here[0][0]
        if self.sticky and client:
            return max(here, key=lambda each: _draw(client, *each))[0]
        credit, total = self.credit, 0.0
        for home, share in here:
            credit[home] += share
            total += share
        found = max(here, key=lambda each: credit[each[0]])[0]
        credit[found] -= total
        return found


def _draw(client: int, home: int, share: float) -> float:
    """A client's draw for a home: the highest wins, each as often as its share says, and a change
    of one share moves few clients."""
    mixed = ((client ^ (home * _MIX)) * _MIX) & _MASK
    mixed = ((mixed ^ (mixed >> 31)) * _MIX) & _MASK
    return share / -log((mixed + 1) / (_MASK + 2))


class RouterHomes:
    """The sub-clusters of a deployment as one frontend sees them. With one there is no directory,
    and every application lives there."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.several = count > 1
        # The last place is that of NOWHERE.
        self.terms = [-1] * (count + 1)
        """By sub-cluster: term of the linked router; -1 while there is none."""
        self.lost_at_ns = [-NEVER] * (count + 1)
        self.directory: Directory | None = None
        self._splits: dict[str, SplitApplication] = {}
        self._unavailable: list[Mapping[str, Unavailability]] = [{}] * count

    def on_up(self, home: int, term: int) -> None:
        self.terms[home] = term

    def on_down(self, now_ns: int, home: int) -> None:
        if self.terms[home] >= 0:
            self.lost_at_ns[home] = now_ns
        self.terms[home] = -1

    def on_directory(self, directory: Directory) -> bool:
        """Go by a directory from now on; false where a newer one is known."""
        if not self.several or not is_newer(directory, self.directory):
            return False
        self.directory = directory
        before, self._splits = self._splits, {}
        for name, homes in directory.applications.items():
            known = [each for each in homes if 0 <= each[0] < self.count]
            if known:
                split = self._splits[name] = SplitApplication(known, name in directory.sticky)
                if name in before and before[name].credit.keys() == split.credit.keys():
                    split.credit = before[name].credit
        return True

    def of(self, application: str) -> tuple[int, ...]:
        """Sub-clusters that serve an application."""
        if not self.several:
            return (0,)
        split = self._splits.get(application)
        return () if split is None else tuple(split.credit)

    def pick(self, application: str, client: int = 0) -> int:
        """The sub-cluster for the next request of an application."""
        if not self.several:
            return 0
        split = self._splits.get(application)
        return NOWHERE if split is None else split.pick(client, self.terms)

    def is_lost(self, now_ns: int, application: str, wait_ns: int) -> bool:
        """Whether no router of an application has been linked for longer than `wait_ns`."""
        homes = self.of(application) or (NOWHERE,)
        terms, lost_at_ns = self.terms, self.lost_at_ns
        return all(terms[each] < 0 and now_ns - lost_at_ns[each] > wait_ns for each in homes)

    def first_linked(self, application: str) -> int:
        """The home that hears what is counted of an application; NOWHERE while none is linked."""
        return next((each for each in self.of(application) if self.terms[each] >= 0), NOWHERE)

    def unavailable(
        self, home: int | None = None, told: Mapping[str, Unavailability] | None = None
    ) -> dict[str, Unavailability]:
        """Applications that none of their homes serves, after what one router has told."""
        if home is not None:
            self._unavailable[home] = told or {}
        return {
            name: why
            for each in self._unavailable
            for name, why in each.items()
            if all(name in self._unavailable[home] for home in self.of(name))
        }
