"""Standings of a tournament: how far each policy stays behind the best, and where it is worst."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import mean

from fermata.simulator.tournament.draw import draw
from fermata.simulator.tournament.families import VARIANTS_MAX
from fermata.simulator.tournament.play import PLAYERS, Match, play

FIELDS = {"any": (1, VARIANTS_MAX), "several": (2, VARIANTS_MAX), "single": (1, 1)}
"""Variants that the applications of a draw may have, by the name of the field."""
BUSY = 0.95
"""Loads above this share of the limit are left out of the comparison with the bound."""
MANY = 8
"""So are draws with fewer backends."""


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """One policy over all matches; regrets are in points, that is hundredths of utility."""

    policy: str
    played: int
    refused: int
    regret_mean: float
    regret_worst: float
    violations_mean: float
    """Violations above those of the best policy, in points."""
    violations_worst: float
    bound_mean: float | None
    """Regret against the fluid bound, on draws with many backends that are not full."""
    cpu_us: float
    worst: tuple[int, ...]
    """Seeds of the draws with the highest regret, worst first."""


def play_all(
    seeds: Sequence[int],
    field: str = "any",
    policies: tuple[str, ...] = PLAYERS,
    processes: int = 1,
) -> Iterator[Match]:
    """A match for each seed, in order."""
    one = partial(play_seed, field=field, policies=policies)
    if processes == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(one, seeds)


def play_seed(
    seed: int, field: str, policies: tuple[str, ...], tables_for_max: int | None = None
) -> Match:
    """The match of one seed."""
    return play(draw(seed, FIELDS[field]), policies, tables_for_max)


def standings(matches: Sequence[Match], shown: int = 5) -> list[PolicyStanding]:
    """A standing for each policy, the one with the least mean regret first."""
    policies = [outcome.policy for outcome in matches[0].outcomes] if matches else []
    table = [_standing(policy, matches, shown) for policy in policies]
    return sorted(table, key=lambda each: each.regret_mean)


def _standing(policy: str, matches: Sequence[Match], shown: int) -> PolicyStanding:
    worst = sorted(matches, key=lambda each: -each.regret(policy))[:shown]
    roomy = [each for each in matches if each.backends >= MANY and each.load < BUSY]
    return PolicyStanding(
        policy=policy,
        played=len(matches),
        refused=sum(bool(each.of(policy).refused) for each in matches),
        regret_mean=_points(mean, (each.regret(policy) for each in matches)),
        regret_worst=_points(max, (each.regret(policy) for each in matches)),
        violations_mean=_points(mean, (each.excess_violations(policy) for each in matches)),
        violations_worst=_points(max, (each.excess_violations(policy) for each in matches)),
        bound_mean=(
            _points(mean, (each.bound - each.of(policy).utility for each in roomy))
            if roomy
            else None
        ),
        cpu_us=mean(each.of(policy).cpu_us for each in matches),
        worst=tuple(each.seed for each in worst),
    )


def _points(how: Callable[[Iterable[float]], float], values: Iterable[float]) -> float:
    return 100.0 * how(list(values))
