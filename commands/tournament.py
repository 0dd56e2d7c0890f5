"""`fermata tournament`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fermata.commands.progress import progress_bar
from fermata.commands.simulation import AsJson
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.simulator.tournament.draw import draw
from fermata.simulator.tournament.play import PLAYERS, Match, live_options
from fermata.simulator.tournament.standings import FIELDS, PolicyStanding, play_all, standings

DRAWS = 200
QUICK_DRAWS = 60
HELD_OUT = 1_000_000
"""Policies are tuned on seeds below; figures are for seeds from here on."""


def tournament(
    draws: Annotated[int, typer.Option(min=1, help="Workloads to draw.")] = DRAWS,
    first: Annotated[int, typer.Option(min=0, help="Seed of the first workload.")] = HELD_OUT,
    quick: Annotated[bool, typer.Option(help=f"Draw {QUICK_DRAWS} workloads.")] = False,
    field: Annotated[
        str, typer.Option(help="Variants of an application: any, several or single.")
    ] = "any",
    policies: Annotated[
        str, typer.Option(help="Comma-separated policies; default: all that need no training.")
    ] = "",
    processes: Annotated[int, typer.Option(min=1, help="Matches played at once.")] = 2,
    worst: Annotated[int, typer.Option(min=1, help="Worst draws to name for a policy.")] = 3,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the worst draws there as scenario files."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play policies on workloads drawn from seeds, and print how far each stays behind the best.

    Utility is the sum of accuracy over answers in time, over all requests. Policies of one match
    share their arrivals. Draw one seed again with --first SEED --draws 1.
    """
    if field not in FIELDS:
        refuse("--field", field, f"must be one of {', '.join(FIELDS)}")
    chosen = tuple(policies.split(",")) if policies else PLAYERS
    for policy in chosen:
        if policy not in PLAYERS:
            refuse("--policies", policy, f"must be among {', '.join(PLAYERS)}")
    seeds = range(first, first + (QUICK_DRAWS if quick else draws))
    matches: list[Match] = []
    with progress_bar() as progress:
        task = progress.add_task("playing", total=len(seeds))
        for match in play_all(seeds, field, chosen, processes):
            matches.append(match)
            progress.advance(task)
    table = standings(matches, worst)
    if save is not None:
        _save(save, field, table)
    if as_json:
        print(json.dumps([asdict(each) for each in table]))
        return
    console = Console()
    if len(matches) == 1:
        console.print(_match(matches[0]))
    else:
        console.print(_standings(table))
        console.print(f"play one again: fermata tournament --field {field} --draws 1 --first SEED")


def _save(folder: Path, field: str, table: list[PolicyStanding]) -> None:
    """Write the worst draws of each policy, which then can be simulated one by one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for standing in table:
            for seed in standing.worst:
                document = {
                    "policy": standing.policy,
                    "policy_options": live_options(standing.policy),
                    **draw(seed, FIELDS[field]).document,
                }
                path = folder / f"{standing.policy}-{seed}.json"
                path.write_text(json.dumps(document) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None


def _standings(table: list[PolicyStanding]) -> Table:
    shown = Table(title=f"{table[0].played} draws; regrets in points of utility")
    headings = ("policy", "mean", "worst", "violations", "worst", "to bound", "us", "worst draws")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in headings[::7] else "right")
    for each in table:
        shown.add_row(
            each.policy,
            f"{each.regret_mean:.2f}",
            f"{each.regret_worst:.2f}",
            f"{each.violations_mean:.2f}",
            f"{each.violations_worst:.2f}",
            "-" if each.bound_mean is None else f"{each.bound_mean:.2f}",
            f"{each.cpu_us:.0f}",
            " ".join(str(seed) for seed in each.worst),
        )
    return shown


def _match(match: Match) -> Table:
    title = f"seed {match.seed}: {', '.join(match.traits)}; load {match.load:.2f}"
    shown = Table(title=title, caption=f"fluid bound {100 * match.bound:.2f}")
    for heading in ("policy", "utility", "violations %", "us", "refused"):
        shown.add_column(heading, justify="left" if heading in ("policy", "refused") else "right")
    for each in sorted(match.outcomes, key=lambda outcome: -outcome.utility):
        shown.add_row(
            each.policy,
            f"{100 * each.utility:.2f}",
            f"{100 * each.violations:.2f}",
            f"{each.cpu_us:.0f}",
            each.refused,
        )
    return shown
