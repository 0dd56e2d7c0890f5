"""The tables a source holds: made aside, and chosen from by load."""

from dataclasses import dataclass, replace
from functools import lru_cache

from fermata.router.core.costs import NO_ROOM_NS, Costs
from fermata.router.policies.family import Family
from fermata.router.policies.ramsis.chain.problem import (
    QUEUE_MAX,
    WorkerProblem,
    fixed_bins,
    model_bins,
)
from fermata.router.policies.ramsis.counts import poisson
from fermata.router.policies.ramsis.latency import undominated
from fermata.router.policies.ramsis.laws import law_of
from fermata.router.policies.ramsis.load_grid import LoadGrid, peak_rps, solve_grid, solve_point
from fermata.router.policies.ramsis.options import RamsisOptions

LOW = 0.02
"""The lowest load with a table, as a share of what the workers can do; below it is the same."""


@dataclass(frozen=True, slots=True)
class SolveJob:
    """The problem to solve for one kind of backend; picklable, so that another process can."""

    kind: int
    slo_ns: int
    """SLO of the requests it is for, before reply and lead are taken off."""
    variants: tuple[int, ...]
    """The engine's numbers, by the problem's index."""
    problem: WorkerProblem
    low_rps: float
    high_rps: float
    share: float = 1.0
    """Part of the workers' time that it is for."""

    def at_rate(self, rate_rps: float) -> "SolveJob":
        """The same backends and run times, for this load alone."""
        return replace(self, low_rps=rate_rps, high_rps=rate_rps)

    def alike(self, other: "SolveJob") -> bool:
        """Whether they are for the same backends, run times and loads. Those of one source have
        one law of arrivals, which back from another process need not know itself again."""
        mine, others = (replace(each.problem, law=poisson) for each in (self, other))
        return mine == others and replace(self, problem=others) == replace(other, problem=others)

    def __call__(self) -> "Made":
        return _make(self)


@dataclass(frozen=True, slots=True)
class Made:
    """A job and its ladder."""

    job: SolveJob
    ladder: LoadGrid


@lru_cache(maxsize=64)
def _make(job: SolveJob) -> Made:
    """Equal jobs give equal tables; simulations ask for the same ones again and again."""
    if job.low_rps == job.high_rps:
        problem = job.problem.at_rate(job.low_rps)
        return Made(job, LoadGrid(problem.slack_ns, (solve_point(problem),)))
    return Made(job, solve_grid(job.problem, job.low_rps, job.high_rps))


def stretched(costs: Costs, variant: int, kind: int, share: float) -> list[int]:
    """Planned run times from size 1 on, over a share of the backend's time."""
    plan_ns = costs.of(variant, kind).plan_ns[1:]
    if share == 1.0:
        return plan_ns
    return [each if each >= NO_ROOM_NS else int(each / share) for each in plan_ns]


def job_for(
    family: Family,
    allowed: list[int],
    options: RamsisOptions,
    costs: Costs,
    kind: int,
    workers: int,
    lead_ns: int = 0,
    rate_rps: float = 0.0,
    share: float = 1.0,
) -> SolveJob:
    """The tables of a kind of backend with so many workers; for one load, where it is given.

    A batch is decided upon `lead_ns` before it starts, whether the worker idles or still runs the
    one before. Counted from decision to decision all is as in the paper, with that much less SLO.
    Frontends have taken the reply off it too. With a `share` of the workers' time, others run in
    between: a batch takes as long as on a worker that is so much slower.
    """
    tables = [tuple(stretched(costs, family.variants[index], kind, share)) for index in allowed]
    accuracy = [family.accuracy[index] if family.accuracy else 0.0 for index in allowed]
    front = undominated(tables, accuracy)
    latency_ns = tuple(tables[each] for each in front)
    sizes_max = [each.batch_size_max for each in family.spec.variants]
    slo_ns = family.slo_ns or 2 * max(table[-1] for table in tables)
    slo_ns = max(1, slo_ns - family.reply_ns - lead_ns)
    slack_ns = fixed_bins(slo_ns, options.bins) if options.bins else model_bins(latency_ns, slo_ns)
    problem = WorkerProblem(
        latency_ns=latency_ns,
        accuracy=tuple(accuracy[each] for each in front),
        slo_ns=slo_ns,
        workers=workers,
        rate_rps=1.0,
        slack_ns=slack_ns,
        law=law_of(options),
        balancing=options.balancing,
        reward=options.reward,
        drops=family.spec.limit_ns <= family.slo_ns,
        queue_max=options.queue_max or max(QUEUE_MAX, *sizes_max),
    )
    peak = peak_rps(problem)
    low, high = (rate_rps, rate_rps) if rate_rps > 0.0 else (LOW * peak, peak)
    variants = tuple(family.variants[allowed[each]] for each in front)
    return SolveJob(kind, family.slo_ns, variants, problem, low, high, share)
