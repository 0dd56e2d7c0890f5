"""The rule of one sub-cluster: from a window's bad rate and idle fraction to a target.

Symphony allocates N r / (1 - r) backends when the bad rate r is above a threshold, and releases
N f at an idle fraction f. Both mean one thing: the load is worth N (1 - f) / (1 - r) backends. We
measure that demand in each window and keep a little idleness beside it. With none, the bad rate
is at its limit, and the next window would allocate again.
"""

import math
from dataclasses import dataclass, field, replace

from fermata.autoscaler.accuracy import Answers
from fermata.autoscaler.evidence import SPARE_MAX, Ended, TooFew, at
from fermata.autoscaler.pool_shares import covering, handed_out
from fermata.autoscaler.window import Window

BAD_RATE_TRUSTED = 0.9
"""Above it r / (1 - r) means nothing; the sources' own estimate of their demand is used."""
STEADY = "steady"
"""The reason where nothing changes."""
ESTIMATE_TRUSTED = 1.25
"""Times what was busy that the sources' own estimate may be: it holds slow runs, too."""
FEWER_REQUESTS = 0.8
"""Share of the requests at the last release: with fewer, the load has fallen by itself."""
MORE_REQUESTS = 1.1
"""Times the requests at the last rise: with fewer, the load has grown with its backends."""
REST_FACTORS = (1, 4, 16)
"""Times as long to wait after each release in a row, where the load falls with its backends."""
SMALL, UNTOLD_MAX, USUAL_IDLE = 0.4, 2.0, 0.05
"""Backends to keep beside the demand where that is more than `idle` of all; the most of them where
sources do not tell; and the `idle` from which on all of that is kept."""
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
    trusted: float = 1.0
    """Share of the sources' estimate that the last window has borne out."""
    ended: tuple[Ended, ...] = ()
    """Requests of each pool by application, since the last change."""
    answers: tuple[Answers, ...] = ()
    """Their accuracy, where there is one to hold."""
    too_few: tuple[TooFew, ...] = ()
    """Lesson of each pool."""
    releases: int = 0
    """Releases in a row while as many requests came."""
    released_at: int = 0
    """Requests in the window of the last one."""
    risen_at: int = 0
    """Requests in the window of the last rise, while about as many came; 0: there is none."""


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
    release. Where the sources know what their rates need at the least, that counts instead, as
    far as backends are busy for it, and until bad requests prove it wrong. An accuracy to hold
    takes what the planner says, however busy backends are.
    """
    busy, planned = max(0.0, window.busy - window.planned_busy), window.planned
    if window.backends <= 0.0 or window.bad_rate > BAD_RATE_TRUSTED:
        return planned + max(window.wanted, busy)
    seen = busy / (1.0 - window.bad_rate)
    if window.wanted <= 0.0:
        return planned + seen
    if window.bad_rate > options.bad_rate_max:
        return planned + max(window.wanted, seen)
    return planned + min(window.wanted, ESTIMATE_TRUSTED * seen)


def advise(options: RuleOptions, state: RuleState, window: Window) -> ScalingAdvice:
    """The target after this window."""
    demand = sum(demand_of(options, each) for each in window.parts)
    quiet = state.quiet + 1 if window.requests == 0 else 0
    state = _learn(options, state, window)
    there = window.up + window.starting
    ahead = _foreseen(options, (*state.demands, demand)) / demand if demand > 0.0 else 1.0
    target = _target(options, state, window, _needs(options, window, ahead, 0.0))
    targets = (*state.targets, target)[-options.release_after :]
    needs = _needs(options, window, ahead, state.trusted)
    risen = _target(options, state, window, needs)
    reason: str | None = None
    calm = state.calm + 1
    wished = there
    if risen > there and _needs_more(options, state, window, needs):
        wished = risen
        reason = _cause(state, window, demand)
    elif target < there:
        rested = calm > _rest(options, state, window)
        wished, reason = _release(options, there, max(targets), rested, len(targets))
    wished = _within(options, wished, quiet)
    if wished != there:
        calm = 0
        if reason is None:
            reason = "outside minimum and maximum" if quiet == 0 else "no requests"
    kept = replace(
        _remember(options, state, window, wished - there),
        demands=(*state.demands, demand)[-DEMANDS_KEPT:],
        targets=() if wished > there else targets,
        calm=calm,
        quiet=quiet,
    )
    return ScalingAdvice(wished, wished - there, reason or STEADY, demand, kept)


def _learn(options: RuleOptions, state: RuleState, window: Window) -> RuleState:
    """The state with what this window says about each pool."""
    pools = window.parts
    taught = options.forget * state.taught
    # While backends come and go, or have just come, bad requests prove nothing about idleness.
    # Those that are left after a release have been there all the time.
    just_come = state.calm < 1 and state.releases == 0
    if window.starting or not window.backends >= window.up > 0 or just_come:
        nothing = (Ended(),) * len(pools), (Answers(),) * len(pools)
        return replace(state, taught=taught, ended=nothing[0], answers=nothing[1])
    if len(state.ended) != len(pools):
        ended, answers = [each.ended for each in pools], [each.answers for each in pools]
    else:
        ended = [then.and_then(each.ended) for then, each in zip(state.ended, pools, strict=True)]
        pairs = zip(state.answers, pools, strict=True)
        answers = [then.and_then(each.answers) for then, each in pairs]
    state = replace(state, ended=tuple(ended), answers=tuple(answers))
    bad = _bad_pools(options, state, window)
    lessons = [
        _lesson(at(state.too_few, place), place in bad, answers[place].missing(), each, options)
        for place, each in enumerate(pools)
    ]
    taught = max([taught, *(_lacking(options, pools[place]) for place in bad)])
    return replace(state, taught=taught, too_few=tuple(lessons))


def _lesson(known: TooFew, bad: bool, missing: float, pool: Window, options: RuleOptions) -> TooFew:
    """Numbers that are too few, after one more window of a pool."""
    demand = demand_of(options, pool)
    if missing > 0.0 and not bad:
        # Twice as many as planned: more would not bring what those do not.
        spare = max(SPARE_MAX, pool.planned)
        count = min(pool.up + math.ceil(missing), math.ceil(demand + spare)) - 1
        return known.after(True, count, demand, pool.requests, spare)
    return known.after(bad, pool.up, demand, pool.requests)


def _is_short(state: RuleState) -> bool:
    """Whether an accuracy that is to be held is missed."""
    return any(each.missing() > 0.0 for each in state.answers)


def _cause(state: RuleState, window: Window, demand: float) -> str:
    """Why backends are allocated."""
    there = window.up + window.starting
    if _is_short(state):
        return f"less accurate than asked, demand {demand:.1f} of {there}"
    return f"{100 * window.bad_rate:.1f} % bad, demand {demand:.1f} of {there}"


def _bad_pools(options: RuleOptions, state: RuleState, window: Window) -> list[int]:
    """Pools with too many bad requests, all together or those of one application."""
    limit = options.bad_rate_max
    return [
        place
        for place, (each, ended) in enumerate(zip(window.parts, state.ended, strict=True))
        if each.bad_rate > limit or ended.is_bad(limit)
    ]


def _lacking(options: RuleOptions, pool: Window) -> float:
    """Idleness to keep after bad requests beside what should have been enough.

    The cause is bursts, or models that run longer than they should.
    """
    if pool.backends <= 0.0:
        return 0.0
    told = pool.wanted + pool.planned
    load = told if told > 0.0 else pool.busy
    lacking = 1.0 - load / pool.backends + options.idle_taught - options.idle
    return min(lacking, options.idle_max - options.idle)


def _needs(options: RuleOptions, window: Window, ahead: float, trusted: float) -> list[float]:
    """Backends that each pool will need. An estimate runs ahead of what was busy when a rate has
    just risen: it counts as far as it was borne out before."""
    return [
        ahead * max(demand_of(options, each), each.planned + trusted * each.wanted)
        for each in window.parts
    ]


def _target(options: RuleOptions, state: RuleState, window: Window, needs: list[float]) -> int:
    """The least number with which every pool has enough, and is as idle as it should be."""
    counts: list[int] = []
    for place, (pool, need) in enumerate(zip(window.parts, needs, strict=True)):
        # Few backends have to be idle for a larger share of the time than many, most of all where
        # busy time is all that is known, which tells of no deadline: square-root staffing.
        alone = min(math.sqrt(pool.untold), UNTOLD_MAX)
        spare = max(SMALL, alone) * min(1.0, options.idle / USUAL_IDLE)
        whole = max(need + spare, need / (1.0 - options.idle - state.taught))
        # An owner without a backend is not served.
        least = max(1, at(state.too_few, place).count + 1)
        counts.append(max(least, math.ceil(whole - 1e-9)))
    return covering([each.share for each in window.parts], counts, options.maximum)


def _needs_more(options: RuleOptions, state: RuleState, window: Window, needs: list[float]) -> bool:
    """Too many bad requests, or about to be: most of the idleness to keep is gone."""
    if window.up == 0 or _bad_pools(options, state, window) or _is_short(state):
        return True
    kept = options.idle + state.taught
    there = window.up + window.starting
    held = handed_out([each.share for each in window.parts], there)
    has_risen = _risen_at(state, window) > 0
    return kept > 0.0 and any(
        need > count * (1.0 - 0.4 * kept) and not (has_risen and _is_untold(pool))
        for pool, need, count in zip(window.parts, needs, held, strict=True)
    )


def _is_untold(pool: Window) -> bool:
    """Whether busy time is most of what is known. Policies that spend idle time on accuracy are as
    busy with more backends: one rise is enough, until more requests come or some are bad."""
    return pool.untold > 0.5 * (pool.wanted + pool.planned)


def _risen_at(state: RuleState, window: Window) -> int:
    """Requests in the window of the last rise; 0 where others come now than came then."""
    few, many = FEWER_REQUESTS * state.risen_at, MORE_REQUESTS * state.risen_at
    return state.risen_at if few <= window.requests <= many else 0


def _rest(options: RuleOptions, state: RuleState, window: Window) -> int:
    """Windows to wait after a change. Policies that spend idle time on accuracy are as busy with
    fewer backends, down to none: there each release waits longer than the one before."""
    if window.untold <= 0.0:
        return options.cool_down
    return options.cool_down * REST_FACTORS[min(state.releases, len(REST_FACTORS) - 1)]


def _remember(options: RuleOptions, state: RuleState, window: Window, change: int) -> RuleState:
    """The state with how far the estimate was right, and the releases in a row."""
    wanted = sum(each.wanted for each in window.parts)
    demand = sum(demand_of(options, each) - each.planned for each in window.parts)
    trusted = min(1.0, demand / wanted) if wanted > 0.0 else 1.0
    releases, released_at = state.releases, state.released_at
    if change > 0 or window.requests < FEWER_REQUESTS * released_at:
        releases = released_at = 0
    if change < 0:
        releases, released_at = releases + 1, window.requests
    risen_at = 0 if change < 0 else _risen_at(state, window)
    return replace(
        state,
        trusted=trusted,
        ended=() if change else state.ended,
        answers=() if change else state.answers,
        releases=releases,
        released_at=released_at,
        risen_at=window.requests if change > 0 else risen_at,
    )


def _release(
    options: RuleOptions, there: int, target: int, rested: bool, windows: int
) -> tuple[int, str | None]:
    """The number to keep, and why it is another one or not yet."""
    if windows < options.release_after or not rested:
        return there, "idle, but not for long enough"
    if there - target <= options.release_band * there:
        return there, None
    return target, f"idle: {target} would do"


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
