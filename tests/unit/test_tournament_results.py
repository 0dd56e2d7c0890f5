"""Results of a tournament that is played in slices."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.tournament import measure
from benchmarks.tournament_results import Result, Results
from fermata.foundation.errors import ConfigError
from fermata.simulator.tournament.play import Match, Outcome


def played(part: str, number: int) -> Result:
    """The default misses the best by as many points as the number says."""
    if part == "load":
        return Result(part, number, lost=float(number))
    outcomes = (Outcome("eager", 0.9, 0.1, 1.0), Outcome("auto", 0.9 - number / 100, 0.1, 1.0))
    return Result(part, number, Match(number, ("8 backends",), 0.5, 8, False, 1.0, outcomes))


def refused(part: str, number: int) -> Result:
    raise AssertionError(f"{part} {number} was played before")


def asked(results: Results, part: str, numbers: Iterable[int]) -> list[Result]:
    results.ask(part, numbers)
    return results.of(part)


def test_what_a_file_has_is_not_played_again(tmp_path: Path) -> None:
    save = tmp_path / "results"
    first = asked(Results((), save, 1, played), "single", [1, 2])
    assert first == [played("single", 1), played("single", 2)]
    again = Results((), save, 1, refused)
    assert asked(again, "single", [1, 2]) == first
    more = asked(Results((), save, 1, played), "single", [2, 3])
    assert [each.number for each in more] == [1, 2, 3]


def test_files_of_several_slices_are_counted_together(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    asked(Results((), files[0], 1, played), "single", [0, 1])
    asked(Results((), files[1], 1, played), "single", [5])
    asked(Results((), files[1], 1, played), "load", [7])
    results = Results(files, None, 1, refused)
    figures = list(measure(["single", "pairs"], 500, 1_000_000, results, quick=False))
    assert [round(each.value, 9) for each in figures[:2]] == [2.0, 5.0]
    assert figures[0].figure == "auto, 3 draws, single variants: mean regret"
    assert [each.value for each in figures[-2:]] == [7.0, 1.0]


def test_a_line_that_was_cut_is_left_out_and_any_other_refused(tmp_path: Path) -> None:
    save = tmp_path / "results"
    asked(Results((), save, 1, played), "single", [1, 2])
    whole = save.read_text(encoding="utf-8")
    save.write_text(whole[:-40], encoding="utf-8")
    assert [each.number for each in Results([save], None, 1).of("single")] == [1]
    save.write_text("{}\n" + whole, encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1 is no result"):
        Results([save], None, 1)
