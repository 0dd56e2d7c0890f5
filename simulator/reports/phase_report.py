"""Goodput by the state of a workload that switches between states, as RL-edge's Table 2 has it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fermata.simulator.arrivals import map_stationary
from fermata.simulator.run import DROPPED, RunLog
from fermata.simulator.scenario.arrival_spec import ArrivalSpec
from fermata.simulator.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class StateReport:
    """One state of the workload, by its arrival rate."""

    rps: float
    share: float
    """Share of all requests, in the long run."""
    requests: int
    goodput: float
    """Right answers in time, as a fraction of the requests; from the variants' accuracy."""
    violations: float
    """Late or dropped, as a fraction of the requests."""
    first_variant: float
    """Share of the requests that the first variant answered."""


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """Fractions of all requests, each state weighted with its share in the long run: the few
    switches of a run leave its own shares to chance, which would drown what policies differ by."""

    goodput: float
    violations: float
    states: tuple[StateReport, ...]
    """The busiest first; those that the run never got to are left out."""


def report_phases(scenario: Scenario, log: RunLog) -> PhaseReport:
    """The figures of one run of a MAP or a trace whose variants all have an accuracy."""
    rates = phase_rates(scenario.arrivals)
    shares = phase_shares(scenario.arrivals)
    arrivals = log.arrivals
    measured = arrivals.at_ns >= scenario.warmup_ns
    good = (log.end_ns != DROPPED) & (log.end_ns <= arrivals.at_ns + arrivals.slo_ns)
    accuracy = np.array([each or 0.0 for each in log.accuracy])
    states: list[StateReport] = []
    for rps in sorted(set(rates.tolist()), reverse=True):
        mine = measured & (rates[arrivals.phase] == rps)
        count = int(mine.sum())
        if count == 0:
            continue
        states.append(
            StateReport(
                rps=rps,
                share=float(shares[rates == rps].sum()),
                requests=count,
                goodput=float(accuracy[log.variant[mine & good]].sum()) / count,
                violations=int((mine & ~good).sum()) / count,
                first_variant=int((log.variant[mine & good] == 0).sum()) / count,
            )
        )
    total = sum(state.share for state in states) or 1.0
    return PhaseReport(
        goodput=sum(state.share * state.goodput for state in states) / total,
        violations=sum(state.share * state.violations for state in states) / total,
        states=tuple(states),
    )


def phase_rates(spec: ArrivalSpec) -> npt.NDArray[np.float64]:
    """Arrivals per second in each phase of a MAP, or step of a trace."""
    if spec.process == "map":
        return np.asarray(np.array(spec.d1).sum(axis=1))
    return np.array(spec.rps)


def phase_shares(spec: ArrivalSpec) -> npt.NDArray[np.float64]:
    """Share of the requests that arrive in each phase, in the long run."""
    weights = phase_rates(spec)
    if spec.process == "map":
        weights = weights * map_stationary(np.array(spec.d0), np.array(spec.d1))
    return np.asarray(weights / weights.sum())
