"""The rule of one sub-cluster: from a window's bad rate and idle fraction to a target.

Symphony allocates N r / (1 - r) backends when the bad rate r is above a threshold, and releases
N f at an idle fraction f. Both say one thing: the load is worth N (1 - f) / (1 - r) backends. We
measure that demand in each window and keep a little idleness beside it, for with none the bad
rate is at its limit and the next window would allocate again.
"""

import math
from dataclasses import dataclass, field, replace

BAD_RATE_TRUSTED = 0.9
"""Above it r / (1 - r) says nothing; the sources' own estimate of their demand is used."""


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """What a user may tune; counts are in backends, spans in windows."""

    minimum: int = 1
    maximum: int = 1_000_000
    to_zero: bool = False
    """Release the last backend too, once nothing has come for `zero_after` windows."""
    zero_after: int = 10
    bad_rate_max: float = 0.01
    """Allocate above it."""
    idle: float = 0.05
    """Idle fraction to keep: the paper's rule is 0."""
    idle_max: float = 0.5
    """What bursts may teach it to keep at most."""
    idle_taught: float = 0.03
    """How much more to keep than what has just proved too little."""
    forget: float = 0.995
    """What is left, after a window, of what bursts have taught."""
    release_band: float = 0.04
    """Release only what is more than this share of the backends there are."""
    release_after: int = 3
    """Release no more than every one of so many windows would have."""
    cool_down: int = 2
    """After a change, release nothing for so many windows."""
    lead: float = 1.0
    """How far ahead a rising demand is foreseen: start-up and one window."""
    rising: float = 0.03
    """Growth from window to window, as a share, from which on a demand counts as rising."""


@dataclass(frozen=True, slots=True)
class Window:
    """What one sub-cluster did in one window; means are over the window."""

    backends: float
    """Mean number that were up."""
    busy: float
    """Mean number that ran a batch."""
    requests: int
    """That ended in it, well or badly."""
    bad: int
    wanted: float = 0.0
    """Backends that the sources need at the least for their rates (Eqns 2 and 3); 0: unknown."""
    up: int = 0
    """At its end."""
    starting: int = 0
    """On their way at its end."""

    @property
    def bad_rate(self) -> float:
        return self.bad / self.requests if self.requests else 0.0

    @property
    def idle_fraction(self) -> float:
        return max(0.0, 1.0 - self.busy / self.backends) if self.backends > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RuleState:
    """What the rule remembers from window to window."""

    demands: tuple[float, ...] = ()
    """Of the latest windows, newest last."""
    targets: tuple[int, ...] = ()
    """What each of them would have had."""
    taught: float = 0.0
    """Idleness to keep beyond the option, as bursts have taught."""
    calm: int = 0
    """Windows since the last change."""
    quiet: int = 0
    """Windows without a request."""


@dataclass(frozen=True, slots=True)
class ScalingAdvice:
    """How many backends there should be, and why."""

    target: int
    change: int
    """Against those up or on their way."""
    reason: str
    demand: float
    """Backends' worth of load in the window."""
    state: RuleState = field(repr=False)


def demand_of(options: RuleOptions, window: Window) -> float:
    """The load in backends, N (1 - f) / (1 - r): busy ones, and more where requests were lost.

    Backends at ease run smaller batches than they could, so that f tells less than there is to
    release. Where the sources know what their rates need at the least, that counts instead, until
    bad requests prove it wrong.
    """
    if window.backends <= 0.0 or window.bad_rate > BAD_RATE_TRUSTED:
        return max(window.wanted, window.busy)
    seen = window.busy / (1.0 - window.bad_rate)
    if window.wanted <= 0.0:
        return seen
    return max(window.wanted, seen) if window.bad_rate > options.bad_rate_max else window.wanted


def advise(options: RuleOptions, state: RuleState, window: Window) -> ScalingAdvice:
    """The target after this window."""
    demand = demand_of(options, window)
    quiet = state.quiet + 1 if window.requests == 0 else 0
    taught = _taught(options, state, window)
    there = window.up + window.starting
    ahead = _foreseen(options, (*state.demands, demand))
    target = math.ceil(ahead / (1.0 - options.idle - taught) - 1e-9)
    if window.requests and target == 0:
        target = 1
    targets = (*state.targets, target)[-options.release_after :]
    reason = "steady"
    calm = state.calm + 1
    wished = there
    if target > there and _needs_more(options, window, ahead, there, taught):
        wished = target
        reason = f"{100 * window.bad_rate:.1f} % bad, demand {demand:.1f} of {there}"
    elif target < there:
        wished, reason = _release(options, there, max(targets), calm, len(targets))
    wished = _within(options, wished, quiet)
    if wished != there:
        calm = 0
        if reason == "steady":
            reason = "outside minimum and maximum" if quiet == 0 else "no requests"
    kept = RuleState(
        demands=(*state.demands, demand)[-4:],
        targets=() if wished > there else targets,
        taught=taught,
        calm=calm,
        quiet=quiet,
    )
    return ScalingAdvice(wished, wished - there, reason, demand, kept)


def _needs_more(
    options: RuleOptions, window: Window, ahead: float, there: int, taught: float
) -> bool:
    """Too many bad requests, or about to be: most of the idleness to keep is gone."""
    if window.up == 0 or window.bad_rate > options.bad_rate_max:
        return True
    kept = options.idle + taught
    return kept > 0.0 and ahead > there * (1.0 - 0.4 * kept)


def _release(
    options: RuleOptions, there: int, target: int, calm: int, windows: int
) -> tuple[int, str]:
    if windows < options.release_after or calm <= options.cool_down:
        return there, "idle, but not for long enough"
    if there - target <= options.release_band * there:
        return there, "steady"
    return target, f"idle: {target} would do"


def _taught(options: RuleOptions, state: RuleState, window: Window) -> float:
    """Bad requests beside what should have been enough: bursts, or models that run longer than
    they should. Keep more from now on."""
    taught = options.forget * state.taught
    # While backends come and go, or have just come, bad requests say nothing about idleness.
    settled = window.starting == 0 and window.backends >= window.up > 0 and state.calm >= 1
    if settled and window.bad_rate > options.bad_rate_max:
        load = window.wanted if window.wanted > 0.0 else window.busy
        spare = 1.0 - load / window.backends
        lacking = spare + options.idle_taught - options.idle
        taught = max(taught, min(lacking, options.idle_max - options.idle))
    return taught


def _foreseen(options: RuleOptions, demands: tuple[float, ...]) -> float:
    """The demand when a backend asked for now would be up: further along the line of the latest
    windows where they rise one after the other, and as it is where they do not. A step is no
    line: it rises once."""
    newest = demands[-1]
    if len(demands) < 3:
        return newest
    slope = min(demands[-1] - demands[-2], demands[-2] - demands[-3])
    if slope <= options.rising * newest:
        return newest
    return newest + options.lead * slope


def _within(options: RuleOptions, wished: int, quiet: int) -> int:
    if options.to_zero and quiet >= options.zero_after:
        return 0
    lowest = options.minimum if not options.to_zero else max(1, options.minimum)
    return max(lowest, min(options.maximum, wished))


def share_out(
    targets: dict[str, int], demands: dict[str, float], minimum: dict[str, int], maximum: int
) -> dict[str, int]:
    """Targets of all sub-clusters within the maximum of the whole cluster.

    Where they do not all fit, each gets its minimum and the rest in proportion to its demand:
    overload is then shared, not left to whoever asked last.
    """
    if sum(targets.values()) <= maximum:
        return dict(targets)
    given = {name: min(minimum[name], target) for name, target in targets.items()}
    left = max(0, maximum - sum(given.values()))
    while left > 0:
        open_names = [name for name in targets if given[name] < targets[name]]
        # One at a time to whoever has least for its demand; clusters are not that large.
        neediest = min(open_names, key=lambda name: (given[name] / max(demands[name], 1e-9), name))
        given[neediest] += 1
        left -= 1
    return given


def without_memory(state: RuleState) -> RuleState:
    """After a new plan the sub-cluster's past says nothing; what bursts taught still does."""
    return replace(RuleState(), taught=state.taught)
