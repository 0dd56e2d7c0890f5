"""How many workers a load needs for an accuracy and a violation rate, by promise or simulation."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from fermata.foundation.errors import ConfigError
from fermata.foundation.units import seconds
from fermata.router.policies.ramsis.chain.problem import WorkerProblem
from fermata.router.policies.ramsis.chain.solve import solve
from fermata.router.policies.ramsis.options import RamsisOptions
from fermata.router.policies.ramsis.slo_classes import share_out, slos_of
from fermata.router.policies.ramsis.tables import job_for
from fermata.simulator.assembly import assemble
from fermata.simulator.reports.report import report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario

SIMULATED_NS = seconds(20)


@dataclass(frozen=True, slots=True)
class WorkerGoal:
    """The goals of the service."""

    rate_rps: float
    accuracy: float
    """Accuracy of requests answered in time, at least."""
    violation: float
    """Share of requests not answered in time, at most."""


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """So many workers, and what they give."""

    workers: int
    accuracy: float
    violation: float

    def meets(self, wish: WorkerGoal) -> bool:
        return self.accuracy >= wish.accuracy and self.violation <= wish.violation


Try = Callable[[int], WorkerCount]
Tell = Callable[[WorkerCount], None]


def only_application(scenario: Scenario, name: str = "") -> Scenario:
    """The scenario with the named application alone, or its only one."""
    names = [each.name for each in scenario.applications]
    if not name and len(names) > 1:
        raise ConfigError(f"application: the scenario has {', '.join(names)}; name one")
    chosen = [each for each in scenario.applications if each.name == (name or names[0])]
    if not chosen:
        raise ConfigError(f"application={name!r}: the scenario has {', '.join(names)}; name one")
    if any(variant.accuracy is None for variant in chosen[0].variants):
        raise ConfigError(f"application {chosen[0].name!r}: give every variant an accuracy")
    return replace(scenario, applications=tuple(chosen), shares=(1.0,))


def options_for(scenario: Scenario, policy: str) -> dict[str, object]:
    """The scenario's options of this policy, for its only application; nothing where it is served
    by another one."""
    (application,) = scenario.applications
    if application.policy:
        return dict(application.policy_options) if application.policy == policy else {}
    return dict(scenario.policy_options) if scenario.policy == policy else {}


def under(scenario: Scenario, policy: str) -> Scenario:
    """The scenario's only application under this policy alone, on a fleet that stays as it is."""
    (application,) = scenario.applications
    return replace(
        scenario,
        applications=(replace(application, policy="", policy_options={}),),
        policy=policy,
        policy_options=options_for(scenario, policy),
        faults=(),
        autoscaler=None,
        epochs=None,
        groups=(),
    )


def worker_problem(
    scenario: Scenario, workers: int, rate_rps: float, options: RamsisOptions, slo_ns: int = 0
) -> tuple[WorkerProblem, tuple[str, ...]]:
    """RAMSIS' problem for the scenario's application, with the names of the variants in it; for
    its own SLO, unless another is given."""
    (application,) = scenario.applications
    # The router's own tables, so that what is planned is what serves.
    built = assemble(under(scenario, "ramsis"), {})
    family = built.families[0].with_slo(slo_ns or application.slo_ns)
    job = job_for(
        family,
        family.choices(),
        options,
        built.engine.costs,
        0,
        workers,
        scenario.dispatch_ns,
        rate_rps,
    )
    names = tuple(application.variants[variant].name for variant in job.variants)
    return job.problem.at_rate(rate_rps), names


def promised_fleet(scenario: Scenario, wish: WorkerGoal, options: RamsisOptions) -> Try:
    """The promise of RAMSIS with so many workers. Where clients differ in SLO (`slos_ms`), each
    class brings that part of the load which it has of the workers, and the least and the largest
    of their promises count: every class has to meet the wish."""
    (application,) = scenario.applications
    classes = slos_of(options, application.slo_ns)

    def attempt(workers: int) -> WorkerCount:
        counts = share_out(workers, [share for _, share in classes])
        if 0 in counts:
            return WorkerCount(workers, 0.0, 1.0)
        solutions = []
        for (slo_ns, share), count in zip(classes, counts, strict=True):
            rate_rps = share * wish.rate_rps
            problem, _ = worker_problem(scenario, count, rate_rps, options, slo_ns)
            solutions.append(solve(problem))
        return WorkerCount(
            workers,
            min(solution.accuracy for solution in solutions),
            max(solution.violation for solution in solutions),
        )

    return attempt


def simulated_fleet(scenario: Scenario, wish: WorkerGoal) -> Try:
    """The central queue's figures with so many workers, in a simulation of the scenario's own
    arrivals."""
    central = under(scenario, "central-queue")

    def attempt(workers: int) -> WorkerCount:
        one = replace(central, backends=workers, rate_rps=wish.rate_rps, duration_ns=SIMULATED_NS)
        result = report(one, simulate(one))
        return WorkerCount(workers, result.accuracy or 0.0, result.bad_rate)

    return attempt


def fewest_workers(
    attempt: Try, wish: WorkerGoal, workers_max: int, tell: Tell | None = None
) -> WorkerCount | None:
    """The smallest fleet that meets the wish; None if not even the largest does."""

    def tried(workers: int) -> WorkerCount:
        fleet = attempt(workers)
        if tell is not None:
            tell(fleet)
        return fleet

    best: WorkerCount | None = None
    low, high = 0, 1
    while best is None:
        fleet = tried(min(high, workers_max))
        if fleet.meets(wish):
            best = fleet
        elif high >= workers_max:
            return None
        else:
            low, high = high, 2 * high
    while best.workers - low > 1:
        fleet = tried((low + best.workers) // 2)
        if fleet.meets(wish):
            best = fleet
        else:
            low = fleet.workers
    return best
