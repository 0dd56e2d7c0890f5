"""Requests that run apart: those of suspects, and of frontends that not every backend reaches."""

from collections.abc import Collection, Sequence

from fermata.router.core.events import Apart, Request
from fermata.router.health.suspects import Suspects
from fermata.router.links.messages import frontend_of
from fermata.router.policies.family import Family


class Separation:
    """Decides which requests meet with nobody else's, and which backends they avoid."""

    def __init__(self, families: tuple[Family, ...], kinds_max: int = 10_000) -> None:
        """`kinds_max` kinds of such requests are kept; clients may have as many names as they
        like."""
        self.families = families
        self.kinds_max = kinds_max
        self.suspects = Suspects()
        self.cuts: dict[int, set[int]] = {}
        """By frontend: backends that do not reach it."""
        self.kinds: dict[tuple[int, int, int, int], Apart] = {}
        """By application, party, frontend and variant; a party of 0: anybody's, and a frontend of
        -1: any."""

    @property
    def active(self) -> bool:
        return bool(self.suspects.records or self.cuts)

    def on_error(self, now_ns: int, requests: Sequence[Request]) -> None:
        """Note that these failed together, or alone."""
        parties = {party_of(request) for request in requests}
        self.suspects.on_error(now_ns, requests[0].application, parties)

    def refused_ns(self, now_ns: int, request: Request) -> int:
        """Time for which a request's party is refused; 0 where it is not."""
        return self.suspects.refused_ns(now_ns, request.application, party_of(request))

    def apart(self, now_ns: int, request: Request) -> Apart | None:
        """The kind of a request that is to run apart; None for any other."""
        application, frontend = request.application, frontend_of(request.rid)
        party = party_of(request)
        if not self.suspects.is_apart(now_ns, application, party):
            party = 0
        avoid = self.cuts.get(frontend)
        if not party and not avoid:
            return None
        key = application, party, frontend if avoid else -1, self._variant(request)
        kind = self.kinds.get(key)
        if kind is None:
            if len(self.kinds) >= self.kinds_max:
                self.kinds.clear()
            kind = self.kinds[key] = Apart(key[-1], avoid)
        return kind

    def _variant(self, request: Request) -> int:
        serving = self.families[request.application].serving
        allowed = request.allowed
        return serving if not allowed or serving in allowed else min(allowed)

    # Reach

    def on_reach(self, backend: int, unreachable: Collection[int]) -> list[int]:
        """Note the frontends that a backend does not reach now; it reaches all others. Returns
        those that it did not reach before."""
        for frontend in unreachable:
            self.cuts.setdefault(frontend, set()).add(backend)
        healed = [each for each, cut in self.cuts.items() if backend in cut]
        healed = [each for each in healed if each not in unreachable]
        for frontend in healed:
            self._join(frontend, backend)
        return healed

    def _join(self, frontend: int, backend: int) -> None:
        cut = self.cuts[frontend]
        cut.discard(backend)
        if not cut:
            del self.cuts[frontend]
            self.kinds = {key: kind for key, kind in self.kinds.items() if key[2] != frontend}


def party_of(request: Request) -> int:
    """The tenant of a request, or its client where there are none; 0: nobody in particular."""
    return request.tenant or request.client
