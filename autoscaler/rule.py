"""The rule of one sub-cluster: from a window's bad rate and idle fraction to a target.

Symphony allocates N r / (1 - r) backends when the bad rate r is above a threshold, and releases
N f at an idle fraction f. Both mean one thing: the load is worth N (1 - f) / (1 - r) backends. We
measure that demand in each window and keep a little idleness beside it. With none, the bad rate
is at its limit, and the next window would allocate again.
"""

import math
from dataclasses import dataclass, field, replace

BAD_RATE_TRUSTED = 0.9
"""Above it r / (1 - r) means nothing; the sources' own estimate of their demand is used."""
STEADY = "steady"
"""The reason where nothing changes."""
DEMANDS_KEPT = 4
"""Windows whose demand is remembered: a line needs three."""


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """Options of the rule; counts are in backends, spans in windows."""

    minimum: int = 1
    """Backends to keep while requests come."""
    maximum: int = 100
    """Backends to have at most; Ray Serve's own limit where none is given."""
    to_zero: bool = False
    """Release all of them, whatever the minimum, after `zero_after` windows without a request."""
    zero_after: int = 10
    bad_rate_max: float = 0.01
    """Bad rate above which to allocate."""
    idle: float = 0.05
    """Idle fraction to keep: the paper's rule is 0."""
    idle_max: float = 0.5
    """Most idleness that bursts may teach the rule to keep."""
    idle_taught: float = 0.03
    """Idleness to keep beyond the one that has just proved too little."""
    forget: float = 0.995
    """Share of what bursts have taught that is left after a window."""
    release_band: float = 0.04
    """Release only what is more than this share of the backends there are."""
    release_after: int = 3
    """Release no more than every one of so many windows would have."""
    cool_down: int = 2
    """After a change, release nothing for so many windows."""
    lead: float = 1.0
    """Windows ahead for which a rising demand is foreseen: start-up and one window."""
    rising: float = 0.03
    """Growth from window to window, as a share, from which on a demand counts as rising."""

    def contradiction(self) -> tuple[str, object, str] | None:
        """An option that does not go with the others: its name, its value and the reason."""
        if self.minimum > self.maximum:
            return "minimum", self.minimum, f"is above maximum={self.maximum}"
        if self.minimum == 0 and not self.to_zero:
            return "minimum", self.minimum, "needs to_zero: true"
        if not self.idle <= self.idle_max < 1.0:
            return "idle_max", self.idle_max, f"must be at least idle={self.idle:g}, and below 1"
        return None


@dataclass(frozen=True, slots=True)
class Window:
    """One window of one sub-cluster; means are over the window."""

    backends: float
    """Mean number that were up."""
    busy: float
    """Mean number that ran a batch."""
    requests: int
    """Requests that ended in it, well or badly."""
    bad: int
    wanted: float = 0.0
    """Backends that the sources need at the least for their rates (Eqns 2 and 3); 0: unknown."""
    up: int = 0
    """Backends up at its end."""
    starting: int = 0
    """Backends on their way at its end."""

    @property
    def bad_rate(self) -> float:
        return self.bad / self.requests if self.requests else 0.0

    @property
    def idle_fraction(self) -> float:
        return max(0.0, 1.0 - self.busy / self.backends) if self.backends > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RuleState:
    """Memory of the rule from window to window."""

    demands: tuple[float, ...] = ()
    """Demand in the latest windows, newest last."""
    targets: tuple[int, ...] = ()
    """Target that each of the latest windows would have had."""
    taught: float = 0.0
    """Idleness to keep beyond the option, as bursts have taught."""
    calm: int = 0
    """Windows since the last change."""
    quiet: int = 0
    """Windows without a request."""


@dataclass(frozen=True, slots=True)
class ScalingAdvice:
    """Number of backends that there should be, and the reason."""

    target: int
    change: int
    """Change against those up or on their way."""
    reason: str
    demand: float
    """Backends' worth of load in the window."""
    state: RuleState = field(repr=False)


def demand_of(options: RuleOptions, window: Window) -> float:
    """The load in backends, N (1 - f) / (1 - r): busy ones, and more where requests were lost.

    Backends at ease run smaller batches than they could, so that f shows less than there is to
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
    reason: str | None = None
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
        if reason is None:
            reason = "outside minimum and maximum" if quiet == 0 else "no requests"
    kept = RuleState(
        demands=(*state.demands, demand)[-DEMANDS_KEPT:],
        targets=() if wished > there else targets,
        taught=taught,
        calm=calm,
        quiet=quiet,
    )
    return ScalingAdvice(wished, wished - there, reason or STEADY, demand, kept)


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
) -> tuple[int, str | None]:
    """The number to keep, and why it is another one or not yet."""
    if windows < options.release_after or calm <= options.cool_down:
        return there, "idle, but not for long enough"
    if there - target <= options.release_band * there:
        return there, None
    return target, f"idle: {target} would do"


def _taught(options: RuleOptions, state: RuleState, window: Window) -> float:
    """Idleness to keep after bad requests beside what should have been enough.

    The cause is bursts, or models that run longer than they should.
    """
    taught = options.forget * state.taught
    # While backends come and go, or have just come, bad requests prove nothing about idleness.
    settled = window.starting == 0 and window.backends >= window.up > 0 and state.calm >= 1
    if settled and window.bad_rate > options.bad_rate_max:
        load = window.wanted if window.wanted > 0.0 else window.busy
        spare = 1.0 - load / window.backends
        lacking = spare + options.idle_taught - options.idle
        taught = max(taught, min(lacking, options.idle_max - options.idle))
    return taught


def _foreseen(options: RuleOptions, demands: tuple[float, ...]) -> float:
    """The demand when a backend asked for now would be up.

    Where the latest windows rise one after the other it lies further along their line, else it is
    the newest one. A step is no line: it rises once.
    """
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


def without_memory(state: RuleState) -> RuleState:
    """The state of a sub-cluster whose models have changed.

    Its windows were those of other models. Idleness that bursts have taught stays: bursts are in
    the arrivals of the whole deployment, and to keep too much of it for a while is safe.
    """
    return replace(RuleState(), taught=state.taught)
