"""Plans as files, where sub-clusters have names: models by sub-cluster, under `plan` or alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fermata.foundation.json_types import JsonObject
from fermata.foundation.refusals import refuse
from fermata.foundation.validation import read_yaml
from fermata.partitioner.plan import Plan


def by_name(plan: Plan, names: Sequence[str]) -> dict[str, list[str]]:
    """Models by the name of their sub-cluster; sub-clusters without any are left out."""
    placed = {name: list(plan.models_of(index)) for index, name in enumerate(names)}
    return {name: models for name, models in sorted(placed.items()) if models}


def load_plan(path: Path | str, names: Sequence[str]) -> Plan:
    """The plan in a file that `fermata plan --json` or a control plane has written.

    Models on a sub-cluster that these names do not have are left out: they have no home.
    """
    data = read_yaml(path)
    placed = data.get("plan", data) if isinstance(data, Mapping) else data
    if not isinstance(placed, Mapping):
        refuse(str(path), placed, "must name the models of each sub-cluster")
    home: dict[str, str] = {}
    for sub_cluster, models in placed.items():
        if not isinstance(models, list):
            refuse(f"{path}: {sub_cluster}", models, "must be a list of models")
        for model in models:
            if str(model) in home:
                words = f"is on {home[str(model)]} too; a model has one home"
                refuse(f"{path}: {sub_cluster}", model, words)
            home[str(model)] = str(sub_cluster)
    index = {name: number for number, name in enumerate(names)}
    return Plan({model: index[at] for model, at in home.items() if at in index})


def save_json(path: Path | str, content: JsonObject) -> None:
    """Write a file in one step, so that a reader never sees half of it."""
    path = Path(path)
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)
