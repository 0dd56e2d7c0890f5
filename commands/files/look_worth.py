"""Worth of a SneakPeek model for the variants of a file, by simulation."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fermata.commands.files.workload import LoadOptions, is_serving_file, workload_of
from fermata.foundation.refusals import refuse
from fermata.foundation.validation import read_yaml
from fermata.router.policies.sneakpeek.penalty import sigmoid

if TYPE_CHECKING:
    from fermata.deployments.sneakpeek.store import SneakPeekModel

DURATION_S = 20.0


@dataclass(frozen=True, slots=True)
class LookWorth:
    """Utility of one application's requests: right answers, less the penalty of late ones."""

    application: str
    rate_rps: float
    with_looks: float
    without: float


def look_worth(
    path: Path, model: "SneakPeekModel", file: Path, rate_rps: float | None = None
) -> LookWorth:
    """Simulate the first application with classes, with the model and without it.

    `file` is where the model has been written.
    """
    data: Any = read_yaml(path)
    applications = data.get("applications") if isinstance(data, dict) else None
    if not applications or not isinstance(applications, list):
        refuse("--for", str(path), "has no applications; give a scenario or a serving file")
    place = next((at for at, each in enumerate(applications) if "classes" in each), 0)
    name = str(applications[place].get("name", place))
    looks: Any = str(file.resolve())
    if not is_serving_file(data):
        looks = {"confusion": [list(row) for row in model.peek.confusion], "votes": model.index.k}
    found = [
        _utility(path, _changed(data, place, looks, policy), rate_rps, place)
        for policy in ("sneakpeek", "grouped")
    ]
    (with_looks, rate), (without, _) = found
    return LookWorth(name, rate, round(with_looks, 4), round(without, 4))


def _changed(data: Any, place: int, looks: Any, policy: str) -> Any:
    """The file's content with this look and policy."""
    made: Any = copy.deepcopy(data)
    row = made.get("applications")[place]
    row.update(classes={**(row.get("classes") or {}), "sneakpeek": looks})
    holder = made.setdefault("router", {}) if is_serving_file(data) else made
    if holder.get("policy") != "sneakpeek":
        holder.pop("policy_options", None)
    holder.update(policy=policy)
    return made


def _utility(path: Path, data: Any, rate_rps: float | None, place: int) -> tuple[float, float]:
    """Mean utility of the application's requests, and the rate of all."""
    from fermata.simulator.reports.utility import right_answers, utilities
    from fermata.simulator.run import Driver

    scenario = workload_of(path, data, LoadOptions(rate_rps=rate_rps, duration_s=DURATION_S))
    log = Driver(scenario).run()
    each = utilities(log, right_answers(log), sigmoid)
    mine = each[np.asarray(log.arrivals.application) == place]
    return float(mine.mean()), float(scenario.rate_rps or rate_rps or 0.0)
