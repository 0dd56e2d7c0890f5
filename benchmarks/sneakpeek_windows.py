"""Windows of requests of several applications, played through the production scheduler."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.sneakpeek_setting import Prepared, Stream
from fermata.applications.application import Application
from fermata.applications.variant import Variant, with_profile
from fermata.foundation.units import ms, seconds
from fermata.profiles.profile import linear
from fermata.router.policies.sneakpeek.classes import Classes
from fermata.router.policies.sneakpeek.penalty import load_penalty
from fermata.simulator.arrivals import Arrivals
from fermata.simulator.contents import Contents
from fermata.simulator.reports.utility import right_answers, utilities
from fermata.simulator.run import Driver, RunLog
from fermata.simulator.scenario.scenario import Fault, Scenario

WINDOW_NS = ms(100)
APART_NS = seconds(1)
"""From one independent window to the next: everything has ended by then."""
PER_APPLICATION = 4
DEADLINE_MS = (150.0, 25.0)
HARD_LIMIT_NS = seconds(1)
"""Far beyond every deadline: what a late answer is worth is the penalty's business."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many requests a window has, and their deadlines."""

    each: int = PER_APPLICATION
    """Requests of each application."""
    deadline_ms: tuple[float, float] = DEADLINE_MS
    """Mean and standard deviation, from the arrival on."""


USUAL = Shape()


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of some windows and what they hold."""

    windows: int
    continuous: bool
    arrivals: Arrivals
    contents: Contents


def draw_load(
    prepared: Sequence[Prepared],
    windows: int,
    continuous: bool,
    seed: int,
    frequencies: Sequence[Sequence[Sequence[float]]] | None = None,
    shape: Shape = USUAL,
) -> Load:
    """Arrivals uniform over each window, deadlines normal; classes as often as the tasks say, or
    as each application's `frequencies` do, one after the other in equal parts of the run."""
    rng = np.random.default_rng([2027, seed])
    period_ns = WINDOW_NS if continuous else APART_NS
    count = windows * shape.each
    at_ns, slo_ns, number, streams = [], [], [], []
    for index, each in enumerate(prepared):
        starts = np.repeat(np.arange(windows) * period_ns, shape.each)
        at_ns.append(starts + rng.integers(0, WINDOW_NS, count))
        slo_ns.append((rng.normal(*shape.deadline_ms, count).clip(20) * 1e6).astype(np.int64))
        number.append(np.full(count, index))
        parts = [each.task.frequencies] if frequencies is None else frequencies[index]
        edges = [round(count * step / len(parts)) for step in range(len(parts) + 1)]
        drawn = [
            each.stream(edges[step + 1] - edges[step], part, rng) for step, part in enumerate(parts)
        ]
        mine = np.argsort(at_ns[-1], kind="stable")
        at_ns[-1], slo_ns[-1] = at_ns[-1][mine], slo_ns[-1][mine]
        streams.append(_joined(drawn))
    order = np.argsort(np.concatenate(at_ns), kind="stable")
    zeros = np.zeros(len(order), np.int64)
    arrivals = Arrivals(
        np.concatenate(at_ns)[order],
        np.concatenate(number)[order],
        zeros,
        np.concatenate(slo_ns)[order],
        priority=zeros,
        phase=zeros,
        weights={},
    )
    return Load(windows, continuous, arrivals, _contents(streams, order))


def _joined(drawn: Sequence[Stream]) -> Stream:
    return Stream(
        np.concatenate([each.labels for each in drawn]),
        np.concatenate([each.right for each in drawn]),
        np.concatenate([each.votes for each in drawn]),
        np.concatenate([each.answers for each in drawn]),
    )


def _contents(streams: Sequence[Stream], order: NDArray[np.int64]) -> Contents:
    count = len(order)
    width = max(each.right.shape[1] for each in streams)
    right = np.zeros((count, width), np.bool_)
    votes: list[tuple[float, ...]] = []
    row = 0
    for each in streams:
        size, variants = each.right.shape
        right[row : row + size, :variants] = each.right
        votes.extend(tuple(map(float, one)) for one in each.votes)
        row += size
    return Contents(
        np.concatenate([each.labels for each in streams])[order],
        right[order],
        [votes[index] for index in order.tolist()],
        np.zeros(count, np.int64),
    )


def scenario_of(
    prepared: Sequence[Prepared],
    load: Load,
    policy: str,
    options: Mapping[str, object],
    classes: Sequence[Classes] | None = None,
    backends: int = 1,
) -> Scenario:
    """One worker with one resident model; its windows are the scheduler's own."""
    applications = tuple(
        _application(each, each.classes if classes is None else classes[index])
        for index, each in enumerate(prepared)
    )
    faults: tuple[Fault, ...] = ()
    if not load.continuous:
        # Between windows the worker starts anew: no backlog, no resident model.
        faults = tuple(
            Fault(window * APART_NS + seconds(0.7), backend, "crash", 1.0, ms(1))
            for window in range(load.windows)
            for backend in range(backends)
        )
    period_ns = WINDOW_NS if load.continuous else APART_NS
    return Scenario(
        applications=applications,
        backends=backends,
        rate_rps=1.0,
        duration_ns=load.windows * period_ns,
        warmup_ns=0,
        policy=policy,
        policy_options={"window_ms": WINDOW_NS / 1e6, **options},
        shares=(1 / len(applications),) * len(applications),
        faults=faults,
        swap=True,
    )


def _application(prepared: Prepared, classes: Classes) -> Application:
    task = prepared.task
    profiles = [
        replace(
            linear(f"{task.name}-{number}", each.latency_ms, 0.0, recall=classes.recall[number]),
            swap_in_ns=ms(each.swap_in_ms),
            accuracy=float(np.mean(classes.recall[number])),
        )
        for number, each in enumerate(task.variants)
    ]
    return Application(
        name=task.name,
        slo_ns=ms(DEADLINE_MS[0]),
        hard_limit_ns=HARD_LIMIT_NS,
        variants=tuple(with_profile(Variant(each.name), each) for each in profiles),
        classes=classes,
    )


@dataclass(frozen=True, slots=True)
class Played:
    """How a load ended."""

    log: RunLog
    right: NDArray[np.bool_]
    utility: NDArray[np.float64]
    """Of each request."""

    @property
    def mean(self) -> float:
        return float(self.utility.mean())


def play(
    prepared: Sequence[Prepared],
    load: Load,
    policy: str,
    penalty: str,
    options: Mapping[str, object] | None = None,
    classes: Sequence[Classes] | None = None,
    backends: int = 1,
) -> Played:
    """Run the load through the engine with this policy."""
    given = {"penalty": penalty, **(options or {})}
    scenario = scenario_of(prepared, load, policy, given, classes, backends)
    log = Driver(scenario, arrivals=load.arrivals, contents=load.contents).run()
    right = right_answers(log)
    return Played(log, right, utilities(log, right, load_penalty("penalty", penalty)))
