"""Turns a scenario's arrivals into one sorted list; the same seed gives the same list."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fermata.applications.application import Application
from fermata.applications.clients import ClientsSpec
from fermata.clients.load.arrivals import gamma
from fermata.foundation.units import SECOND
from fermata.simulator.scenario.pipeline_spec import PipelineSpec
from fermata.simulator.scenario.scenario import Scenario

Times = npt.NDArray[np.int64]
Phased = tuple[Times, Times]
"""When each request arrives, and in which phase of the process."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in order of arrival; one row each."""

    at_ns: Times
    application: Times
    client: Times
    """Stream number, from 1; 0 where an application has no clients."""
    slo_ns: Times
    priority: Times
    phase: Times
    """State of a MAP, or the step of a trace; 0 elsewhere. For reports: policies never see it."""
    weights: dict[int, float]
    """Weights of the clients that have one of their own."""


@dataclass(slots=True)
class _Part:
    at_ns: Times
    client: Times
    slo_ns: Times
    priority: Times
    phase: Times


def generate(scenario: Scenario) -> Arrivals:
    """Every arrival of warm-up and measurement."""
    first_client = 1
    parts: list[_Part] = []
    weights: dict[int, float] = {}
    for index, application in enumerate(scenario.applications):
        rng = np.random.default_rng([scenario.seed, index])
        parts.append(_of_application(scenario, index, first_client, rng))
        for group in application.clients:
            for client in range(first_client, first_client + group.count):
                weights[client] = group.weight
            first_client += group.count
    for index, pipeline in enumerate(scenario.pipelines, len(scenario.applications)):
        rng = np.random.default_rng([scenario.seed, index])
        parts.append(_of_pipeline(scenario, pipeline, index, first_client, rng))
        first_client += sum(group.count for group in pipeline.clients)
    at_ns = np.concatenate([part.at_ns for part in parts])
    order = np.argsort(at_ns, kind="stable")
    numbers = [np.full(len(part.at_ns), index) for index, part in enumerate(parts)]
    return Arrivals(
        at_ns=at_ns[order],
        application=np.concatenate(numbers)[order],
        client=np.concatenate([part.client for part in parts])[order],
        slo_ns=np.concatenate([part.slo_ns for part in parts])[order],
        priority=np.concatenate([part.priority for part in parts])[order],
        phase=np.concatenate([part.phase for part in parts])[order],
        weights=weights,
    )


def _of_application(
    scenario: Scenario, index: int, first_client: int, rng: np.random.Generator
) -> _Part:
    application = scenario.applications[index]
    if scenario.shares[index] <= 0.0 and not scenario.knows_rate():
        nobody = np.zeros(0, np.int64)
        return _Part(nobody, nobody, nobody, nobody, nobody)
    if scenario.arrivals.process == "periodic":
        return _periodic(scenario, index, first_client, rng)
    own = scenario.arrivals.rps_of
    if own:
        at_ns, phase = _own_trace(scenario, own.get(application.name, ()), rng)
    else:
        at_ns, phase = _PROCESSES[scenario.arrivals.process](scenario, scenario.shares[index], rng)
    count = len(at_ns)
    if not application.clients:
        return _Part(
            at_ns,
            np.zeros(count, np.int64),
            np.full(count, application.slo_ns),
            np.zeros(count, np.int64),
            phase,
        )
    return _dealt(at_ns, phase, application.clients, first_client, rng)


def _dealt(
    at_ns: Times,
    phase: Times,
    clients: tuple[ClientsSpec, ...],
    first_client: int,
    rng: np.random.Generator,
) -> _Part:
    """Arrivals of several clients, dealt among them by their frame rates."""
    groups = np.repeat(np.arange(len(clients)), [group.count for group in clients])
    rates = np.array([clients[group].fps or 1.0 for group in groups])
    stream = rng.choice(len(groups), size=len(at_ns), p=rates / rates.sum())
    slos = np.array([group.slo_ns for group in clients])
    priorities = np.array([group.priority for group in clients])
    group_of = groups[stream]
    return _Part(at_ns, first_client + stream, slos[group_of], priorities[group_of], phase)


def _of_pipeline(
    scenario: Scenario,
    pipeline: PipelineSpec,
    index: int,
    first_client: int,
    rng: np.random.Generator,
) -> _Part:
    """Queries of a pipeline, numbered behind the applications."""
    share = scenario.pipeline_shares[index - len(scenario.applications)]
    at_ns, phase = _PROCESSES[scenario.arrivals.process](scenario, share, rng)
    if pipeline.clients:
        return _dealt(at_ns, phase, pipeline.clients, first_client, rng)
    nobody = np.zeros(len(at_ns), np.int64)
    return _Part(at_ns, nobody, np.full(len(at_ns), pipeline.graph.slo_ns), nobody, phase)


def _end_ns(scenario: Scenario) -> int:
    return scenario.warmup_ns + scenario.duration_ns


def _rate(scenario: Scenario, share: float) -> float:
    assert scenario.rate_rps is not None
    return scenario.rate_rps * share


def _renewal(rps: float, end_ns: int, shape: float, rng: np.random.Generator) -> Times:
    """Arrivals whose gaps are Gamma-distributed with mean 1 / rps."""
    if rps <= 0:
        return np.zeros(0, np.int64)
    return gamma(rps, end_ns, shape, rng)


def _poisson(scenario: Scenario, share: float, rng: np.random.Generator) -> Phased:
    at_ns = _renewal(_rate(scenario, share), _end_ns(scenario), 1.0, rng)
    return at_ns, np.zeros_like(at_ns)


def _gamma(scenario: Scenario, share: float, rng: np.random.Generator) -> Phased:
    shape = scenario.arrivals.shape
    at_ns = _renewal(_rate(scenario, share), _end_ns(scenario), shape, rng)
    return at_ns, np.zeros_like(at_ns)


def _trace(scenario: Scenario, share: float, rng: np.random.Generator) -> Phased:
    """Poisson with a rate that changes step by step; the warm-up runs at the first step's."""
    spec = scenario.arrivals
    rps = np.array(spec.rps) * share
    if scenario.rate_rps is not None:
        rps *= scenario.rate_rps / np.mean(spec.rps)
    return _steps(scenario, rps, rng)


def _own_trace(scenario: Scenario, trace: Sequence[float], rng: np.random.Generator) -> Phased:
    """An application's own rates; `rate_rps` rescales the sum of all."""
    if not trace:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    rps = np.array(trace)
    if scenario.rate_rps is not None:
        whole = sum(float(np.mean(each)) for each in scenario.arrivals.rps_of.values())
        rps = rps * scenario.rate_rps / whole
    return _steps(scenario, rps, rng)


def _steps(scenario: Scenario, rps: npt.NDArray[np.float64], rng: np.random.Generator) -> Phased:
    spec = scenario.arrivals
    parts = [_uniform(0, scenario.warmup_ns, rps[0], rng)]
    steps = -(-scenario.duration_ns // spec.step_ns)
    for step in range(steps):
        start_ns = scenario.warmup_ns + step * spec.step_ns
        end_ns = min(start_ns + spec.step_ns, _end_ns(scenario))
        parts.append(_uniform(start_ns, end_ns, rps[step % len(rps)], rng))
    at_ns = np.concatenate(parts)
    step_of = np.maximum(0, at_ns - scenario.warmup_ns) // spec.step_ns
    return at_ns, step_of % len(rps)


def _uniform(start_ns: int, end_ns: int, rps: float, rng: np.random.Generator) -> Times:
    count = rng.poisson(rps * (end_ns - start_ns) / SECOND)
    return np.sort(rng.integers(start_ns, max(end_ns, start_ns + 1), count))


def _markovian(scenario: Scenario, share: float, rng: np.random.Generator) -> Phased:
    """A Markovian arrival process; the application's share sets its speed."""
    if share <= 0.0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    d0, d1 = np.array(scenario.arrivals.d0), np.array(scenario.arrivals.d1)
    speed = share
    if scenario.rate_rps is not None:
        speed *= scenario.rate_rps / map_rate_rps(d0, d1)
    phases = len(d0)
    leave_rps = -np.diag(d0)
    moves = np.concatenate([d0 - np.diag(np.diag(d0)), d1], axis=1)
    chance = np.cumsum(moves / leave_rps[:, None], axis=1).tolist()
    mean_ns = (SECOND / (leave_rps * speed)).tolist()
    end_ns, now_ns, phase = _end_ns(scenario), 0.0, 0
    at_ns: list[int] = []
    in_phase: list[int] = []
    while now_ns < end_ns:
        gaps, draws = rng.exponential(1.0, 4096).tolist(), rng.random(4096).tolist()
        for gap, draw in zip(gaps, draws, strict=True):
            now_ns += gap * mean_ns[phase]
            row = chance[phase]
            move = 0
            while move < 2 * phases - 1 and draw > row[move]:
                move += 1
            if move >= phases:
                at_ns.append(int(now_ns))
                in_phase.append(phase)
            phase = move % phases
    times = np.array(at_ns, np.int64)
    return times[times < end_ns], np.array(in_phase, np.int64)[times < end_ns]


def map_stationary(
    d0: npt.NDArray[np.float64], d1: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Share of the time that a Markovian arrival process spends in each phase."""
    generator = d0 + d1
    phases = len(generator)
    system = np.vstack([generator.T, np.ones(phases)])
    target = np.append(np.zeros(phases), 1.0)
    return np.asarray(np.linalg.lstsq(system, target, rcond=None)[0])


def map_rate_rps(d0: npt.NDArray[np.float64], d1: npt.NDArray[np.float64]) -> float:
    """Mean arrivals per second of a Markovian arrival process."""
    return float(map_stationary(d0, d1) @ d1 @ np.ones(len(d0)))


_PROCESSES: dict[str, Callable[[Scenario, float, np.random.Generator], Phased]] = {
    "poisson": _poisson,
    "gamma": _gamma,
    "trace": _trace,
    "map": _markovian,
}


def _periodic(scenario: Scenario, index: int, first_client: int, rng: np.random.Generator) -> _Part:
    application = scenario.applications[index]
    fps, slo_ns, priority = _streams(scenario, index, application)
    count = len(fps)
    if scenario.arrivals.phase == "locked":
        phases = np.zeros(count)
    elif scenario.arrivals.phase == "staggered":
        phases = np.arange(count) / count
    else:
        phases = rng.random(count)
    end_s = _end_ns(scenario) / SECOND
    parts: list[_Part] = []
    for stream in range(count):
        frames = np.arange(int(end_s * fps[stream]) + 1)
        at_ns = ((frames + phases[stream]) / fps[stream] * SECOND).astype(np.int64)
        at_ns = at_ns[at_ns < _end_ns(scenario)]
        ones = np.ones(len(at_ns), np.int64)
        client = first_client + stream if application.clients else 0
        parts.append(
            _Part(
                at_ns,
                ones * client,
                ones * slo_ns[stream],
                ones * priority[stream],
                np.zeros_like(at_ns),
            )
        )
    at_ns = np.concatenate([part.at_ns for part in parts])
    order = np.argsort(at_ns, kind="stable")
    return _Part(
        at_ns[order],
        np.concatenate([part.client for part in parts])[order],
        np.concatenate([part.slo_ns for part in parts])[order],
        np.concatenate([part.priority for part in parts])[order],
        np.zeros_like(order),
    )


def _streams(
    scenario: Scenario, index: int, application: Application
) -> tuple[list[float], list[int], list[int]]:
    """Frame rate, SLO and priority of each stream; `rate_rps` rescales the frame rates."""
    groups = application.clients
    if not groups:
        return [_rate(scenario, scenario.shares[index])], [application.slo_ns], [0]
    fps = [group.fps or 1.0 for group in groups for _ in range(group.count)]
    if scenario.rate_rps is not None:
        if scenario.knows_rate():
            natural = sum(
                (group.fps or 1.0) * group.count
                for each in scenario.applications
                for group in each.clients
            )
            scale = scenario.rate_rps / natural
        else:
            scale = _rate(scenario, scenario.shares[index]) / sum(fps)
        fps = [rate * scale for rate in fps]
    slo_ns = [group.slo_ns for group in groups for _ in range(group.count)]
    priority = [group.priority for group in groups for _ in range(group.count)]
    return fps, slo_ns, priority
