"""How every benchmark speaks: a table for people, `--json` for scripts, `--quick` for CI."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fermata.foundation.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure beside its goal."""

    figure: str
    value: float
    unit: str
    goal: float
    at_most: bool = False
    """The goal is an upper bound."""

    @property
    def reached(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    def to_dict(self) -> dict[str, object]:
        row = asdict(self)
        del row["at_most"]
        return {**row, "reached": self.reached}


def shown(value: float) -> str:
    """Four significant digits, or all of a large number's."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


Measure = Callable[[bool], Iterator[Figure]]


def run_on_data(
    title: str,
    measure: Callable[[Path, Sequence[str], bool], Iterator[Figure]],
    parts: Mapping[str, str],
    default: Path,
) -> None:
    """As `run_parts`, for figures measured on files that are not part of this repository."""
    parser = parts_parser(parts)
    parser.add_argument(
        "--data", type=Path, default=default, help=f"folder of the files, {default} unless given"
    )
    given = parser.parse_known_args()[0]
    run(title, lambda quick: measure(given.data, given.only or list(parts), quick), parser)


def run_parts(
    title: str,
    measure: Callable[[Sequence[str], bool], Iterator[Figure]],
    parts: Mapping[str, str],
    asked: Sequence[str] = (),
) -> None:
    """As `run`, for figures that may be measured in pieces; `parts` says what each is, `asked`
    which are left out unless they are named."""
    parser = parts_parser(parts)
    wanted = parser.parse_known_args()[0].only or [part for part in parts if part not in asked]
    run(title, lambda quick: measure(wanted, quick), parser)


def parts_parser(parts: Mapping[str, str]) -> argparse.ArgumentParser:
    """For `run`: which parts are wanted (`only`), and whatever else is added to it."""
    parser = argparse.ArgumentParser(add_help=False)
    told = ", ".join(f"{name}: {what}" for name, what in parts.items())
    parser.add_argument(
        "--only", action="append", choices=parts, help=f"a part, may be repeated ({told})"
    )
    return parser


def run(title: str, measure: Measure, more: argparse.ArgumentParser | None = None) -> None:
    """Parse the command line, measure, print; figures appear as they are ready."""
    parser = argparse.ArgumentParser(description=title, parents=[more] if more else [])
    parser.add_argument("--json", action="store_true", help="print a JSON list and nothing else")
    parser.add_argument("--quick", action="store_true", help="a reduced run, for CI")
    arguments = parser.parse_args()
    present(title, measure(arguments.quick), arguments.json)


def present(title: str, measured: Iterator[Figure], as_json: bool) -> None:
    """Print figures: each as it is ready, then all of them."""
    figures: list[Figure] = []
    progress = Console(stderr=True)
    try:
        for figure in measured:
            figures.append(figure)
            if not as_json:
                progress.print(f"  {figure.figure}: {shown(figure.value)} {figure.unit}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except ConfigError as error:
        # A file or an option that was given: its line says which, and the trace would not.
        sys.exit(f"{title}: {error}")
    if as_json:
        print(json.dumps([figure.to_dict() for figure in figures]))
    else:
        Console().print(_table(title, figures))


def _table(title: str, figures: list[Figure]) -> Table:
    table = Table(title=title)
    for heading in ("figure", "value", "unit", "goal", "reached"):
        table.add_column(heading, justify="right" if heading in ("value", "goal") else "left")
    for each in figures:
        sign = "<=" if each.at_most else ">="
        reached = "yes" if each.reached else "no"
        goal = f"{sign} {shown(each.goal)}"
        table.add_row(each.figure, shown(each.value), each.unit, goal, reached)
    return table
