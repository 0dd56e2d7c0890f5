"""Goodput: the highest offered rate at which every application still has at most 1 % bad."""

from collections.abc import Callable
from dataclasses import dataclass

from fermata.applications.backends import BackendGroup
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import SECOND, seconds
from fermata.simulator.assembly import profile_on
from fermata.simulator.pipelines.bound import bound_rps
from fermata.simulator.reports.report import RunReport, report
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import Scenario

BAD_RATE_MAX = 0.01
PRECISION = 0.004
"""The answer is bracketed this closely, in relative terms."""
PROBE_NS = seconds(4)
"""Short runs find the neighbourhood, full ones the answer."""
RATE_MIN_RPS = 0.5

Tell = Callable[[float, RunReport], None]


@dataclass(frozen=True, slots=True)
class Goodput:
    goodput_rps: float
    rates_tried: tuple[float, ...]
    at: RunReport
    """The run at that rate, or at the lowest tried where none was good."""

    def to_dict(self) -> JsonObject:
        at = self.at.to_dict()
        rates = list(self.rates_tried)
        return {"goodput_rps": self.goodput_rps, "rates_tried": rates, **at, "simulate": at}


class _Search:
    """Bisects on full runs inside a bracket that short runs have found."""

    def __init__(self, scenario: Scenario, tell: Tell | None) -> None:
        self.scenario = scenario
        self.tell = tell
        self.tried: list[float] = []
        self.best: tuple[float, RunReport] | None = None
        self.worst: RunReport | None = None

    def good(self, rate_rps: float, short: bool) -> bool:
        scenario = self.scenario.at_rate(rate_rps)
        if short:
            scenario = scenario.lasting(min(PROBE_NS, scenario.duration_ns))
        result = report(scenario, simulate(scenario))
        self.tried.append(rate_rps)
        if self.tell is not None:
            self.tell(rate_rps, result)
        good = result.worst_bad_rate <= BAD_RATE_MAX
        if not short:
            if good and (self.best is None or rate_rps > self.best[0]):
                self.best = (rate_rps, result)
            elif not good:
                self.worst = result
        return good

    def bracket(self, rate_rps: float, short: bool, step: float) -> tuple[float, float]:
        """A good rate (or 0) and a bad one, found by steps of a growing factor."""
        if self.good(rate_rps, short):
            low = rate_rps
            while self.good(low * step, short):
                low, step = low * step, step * step
            return low, low * step
        high = rate_rps
        while high / step > RATE_MIN_RPS:
            if self.good(high / step, short):
                return high / step, high
            high, step = high / step, step * step
        return 0.0, high

    def bisect(self, low: float, high: float, short: bool, precision: float) -> float:
        while high - low > precision * high and high > RATE_MIN_RPS:
            middle = (low + high) / 2
            if self.good(middle, short):
                low = middle
            else:
                high = middle
        return low


def find_goodput(scenario: Scenario, tell: Tell | None = None) -> Goodput:
    """Search; the same scenario gives the same answer."""
    search = _Search(scenario, tell)
    guess = fluid_bound_rps(scenario)
    if scenario.duration_ns > 2 * PROBE_NS:
        low, high = search.bracket(0.9 * guess, short=True, step=1.1)
        guess = search.bisect(low, high, short=True, precision=0.02) or high
        low, high = search.bracket(guess, short=False, step=1.01)
    else:
        low, high = search.bracket(0.9 * guess, short=False, step=1.1)
    search.bisect(low, high, short=False, precision=PRECISION)
    if search.best is None:
        assert search.worst is not None
        return Goodput(0.0, tuple(search.tried), search.worst)
    return Goodput(search.best[0], tuple(search.tried), search.best[1])


def fluid_bound_rps(scenario: Scenario) -> float:
    """The backends' capacity if every batch were as large as the SLO allows."""
    if scenario.pipelines:
        return bound_rps(scenario)
    return sum(
        group.count / _cost_s(scenario, kind)
        for kind in scenario.kinds
        for group in scenario.groups or (kind,)
        if group.same_as == kind.same_as
    )


def _cost_s(scenario: Scenario, kind: BackendGroup) -> float:
    """Backend time of one request in such batches, on a kind of backend."""
    cost_s = 0.0
    for application, share in zip(scenario.applications, scenario.shares, strict=True):
        profile, size = profile_on(application.variants[0], kind), 1
        ends = (profile.batch_size_max, application.variants[0].batch_size_max)
        end = min([each for each in ends if each] or [1024])
        while size < end and profile.latency_ns(size + 1) <= application.slo_ns:
            size += 1
        cost_s += share * profile.latency_ns(size) / size / SECOND
    return cost_s
