"""The tasks of the RAMSIS paper as scenarios: measured models, loads and the Twitter trace."""

import json
from dataclasses import dataclass
from pathlib import Path

from fermata.profiles.monotone import monotone
from fermata.router.policies.ramsis.latency import fill_sizes, monotone_from_right, pareto_front
from fermata.simulator.scenario.scenario import Scenario, read_scenario

DEFAULT_FOLDER = Path("../shared/data/ramsis")
SIZE_MAX = 32
Variant = dict[str, object]


@dataclass(frozen=True, slots=True)
class Task:
    """Models of one task with their run times, fastest first."""

    variants: tuple[Variant, ...]

    @property
    def front(self) -> "Task":
        """Without those that another one beats at batch size 1, as RAMSIS prunes them."""
        alone = [_latency_ms(each)[0] for each in self.variants]
        accuracy = [float(str(each["accuracy"])) for each in self.variants]
        return Task(tuple(self.variants[index] for index in pareto_front(alone, accuracy)))

    def latency_ns(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(round(1e6 * run) for run in _latency_ms(each)) for each in self.variants)

    def accuracy(self) -> tuple[float, ...]:
        return tuple(float(str(each["accuracy"])) for each in self.variants)


def _latency_ms(variant: Variant) -> list[float]:
    latency_ms = variant["latency_ms"]
    assert isinstance(latency_ms, list)
    return [float(each) for each in latency_ms]


def load_task(folder: Path, task: str) -> Task:
    """`image` or `text`, with run times fixed at the profiled 95th percentile."""
    models = json.loads((folder / f"{task}_profiles.json").read_text())["models"]
    variants: list[Variant] = [
        {"name": name, "latency_ms": model["p95_table_1_32"], "accuracy": model["accuracy"] / 100}
        for name, model in models.items()
    ]
    variants.sort(key=lambda each: _latency_ms(each)[0])
    return Task(tuple(variants))


def load_measured(folder: Path, task: str) -> Task:
    """The same with medians and 99th percentiles, for run times drawn between them. Sizes that were
    not profiled lie on the line of the others; no size is faster than a smaller one."""
    models = json.loads((folder / f"{task}_profiles.json").read_text())["models"]
    variants: list[Variant] = []
    for name, model in models.items():
        columns: dict[str, tuple[float, ...]] = {}
        for column in ("p50", "p99"):
            sizes, values = model["batch_sizes"], model[column]
            known = [each for each in range(len(sizes)) if sizes[each] <= SIZE_MAX]
            filled = fill_sizes(
                [sizes[each] for each in known], [values[each] for each in known], SIZE_MAX
            )
            columns[column] = tuple(monotone_from_right(filled))
        p99_ms, _ = monotone(columns["p99"], floor=columns["p50"])
        variants.append(
            {
                "name": name,
                "latency_ms": list(columns["p50"]),
                "p99_ms": list(p99_ms),
                "accuracy": model["accuracy"] / 100,
            }
        )
    variants.sort(key=lambda each: _latency_ms(each)[0])
    return Task(tuple(variants))


def load_trace(folder: Path) -> list[float]:
    """Requests per second of the Twitter trace, one for each ten seconds."""
    rates: list[float] = json.loads((folder / "twitter_trace.json").read_text())["qps"]
    return rates


def served(
    task: Task, slo_ms: float, workers: int, policy: str, late: bool = False, **values: object
) -> Scenario:
    """The task on so many workers; `late` lets requests be answered after their deadline, as the
    paper does, rather than dropped."""
    application: dict[str, object] = {
        "name": "task",
        "slo_ms": slo_ms,
        "variants": list(task.variants),
    }
    if late:
        application["hard_limit_ms"] = 100 * slo_ms
    return read_scenario(
        {"seed": 11, "backends": workers, "policy": policy, "applications": [application], **values}
    )
