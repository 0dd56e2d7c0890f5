"""Looking again which tokens there are, for as long as a process runs."""

import asyncio
from collections.abc import Callable, Mapping

from fermata.deployments.config.security import TokenConfig
from fermata.foundation.errors import ConfigError
from fermata.foundation.logs import LOG

LOOK_S = 5.0
Tokens = Mapping[str, tuple[str, ...]]


class TokenReader:
    """Reads each name's tokens from its own place, so that one that is broken keeps none of the
    others from being renewed."""

    def __init__(self, places: Mapping[str, TokenConfig]) -> None:
        self._places = dict(places)
        self._missed: set[str] = set()

    def look(self) -> Tokens:
        """Those of each name; one that is left out keeps what it has.

        Once, somebody may be writing the file. What cannot be read twice in a row has been taken
        away: then its tokens are good no more.
        """
        found: dict[str, tuple[str, ...]] = {}
        for name, place in self._places.items():
            try:
                found[name] = place.tokens()
                self._missed.discard(name)
            except ConfigError as error:
                if name in self._missed:
                    found[name] = ()
                    continue
                self._missed.add(name)
                LOG.warning(
                    "cannot read the tokens of %s; they expire at the next read: %s", name, error
                )
        return found

    async def keep(self, take: Callable[[Tokens], None]) -> None:
        """Hand them on every few seconds; does not return."""
        while True:
            await asyncio.sleep(LOOK_S)
            take(await asyncio.to_thread(self.look))
