"""Results of a tournament on disk, so that its draws are played in slices and counted together."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from fermata.foundation.errors import ConfigError
from fermata.simulator.tournament.h200 import grid
from fermata.simulator.tournament.pairs import CHANGES, falls
from fermata.simulator.tournament.play import PLAYERS, Match, Outcome
from fermata.simulator.tournament.play import play as play_draw
from fermata.simulator.tournament.standings import play_seed

FIELDS = ("several", "single")
FAMILY = "family"
DEFAULT = "auto"
TABLES_FOR_MAX = 3
"""Applications of a draw up to which RAMSIS is played: it solves tables for each, and with many
takes longer than all others together."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one draw, pair or point."""

    part: str
    """A field of draws, the family, or the change that makes a pair."""
    number: int
    """Seed, or place in the grid."""
    match: Match | None = None
    lost: float = 0.0
    """Points of utility that a pair lost."""


def play(part: str, number: int) -> Result:
    """One draw, pair or point."""
    if part in CHANGES:
        return Result(part, number, lost=next(falls(number, part, (DEFAULT,))))
    if part == FAMILY:
        return Result(part, number, play_draw(list(grid())[number], PLAYERS))
    return Result(part, number, play_seed(number, part, PLAYERS, TABLES_FOR_MAX))


class Results:
    """Results by part: those of the files, and those that are still to be played."""

    def __init__(
        self,
        files: Sequence[Path],
        save: Path | None,
        processes: int,
        player: Callable[[str, int], Result] = play,
    ) -> None:
        self.save = save
        self.player = player
        self.known = {(each.part, each.number): each for each in _read([*files, *_there(save)])}
        self.pool = None if files else ProcessPoolExecutor(processes)
        self.asked: dict[str, list[Future[Result]]] = {}

    def ask(self, part: str, numbers: Iterable[int]) -> None:
        """Have those played that no file has; only what files have counts where some are given."""
        if self.pool is not None:
            missing = [each for each in numbers if (part, each) not in self.known]
            self.asked[part] = [self.pool.submit(self.player, part, each) for each in missing]

    def of(self, part: str) -> list[Result]:
        """Every result of a part, once all that was asked for is played, by number."""
        for future in as_completed(self.asked.pop(part, [])):
            result = future.result()
            self.known[result.part, result.number] = result
            if self.save is not None:
                with self.save.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
        found = [each for each in self.known.values() if each.part == part]
        return sorted(found, key=lambda each: each.number)


def _there(save: Path | None) -> list[Path]:
    return [save] if save is not None and save.exists() else []


def _read(files: Iterable[Path]) -> Iterator[Result]:
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        for number, line in enumerate(lines, 1):
            try:
                yield _parsed(line)
            except (ValueError, KeyError, TypeError):
                # A process that was ended in the midst of it leaves half a line at the end.
                if number < len(lines):
                    raise ConfigError(f"{path}: line {number} is no result") from None


def _parsed(line: str) -> Result:
    row = json.loads(line)
    match = row["match"]
    if match is not None:
        outcomes = tuple(Outcome(**each) for each in match["outcomes"])
        match = Match(**{**match, "traits": tuple(match["traits"]), "outcomes": outcomes})
    return Result(row["part"], row["number"], match, row["lost"])
