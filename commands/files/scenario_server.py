"""A scenario as a serving file: its applications on emulated GPUs, or on what they name."""

from dataclasses import replace
from pathlib import Path

from fermata.applications.application import Application
from fermata.applications.reader import numbered
from fermata.applications.variant import EMULATED
from fermata.commands.files.workload import LoadOptions, load_workload
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.resolve import presets
from fermata.foundation.refusals import refuse
from fermata.foundation.validation import fields, read_yaml
from fermata.simulator.scenario.scenario import SCENARIO_KEYS, declared

EMULATED_CPUS = 0.1


def serve_scenario(path: Path) -> DeploymentConfig:
    """The configuration that serves a scenario's applications, or a ConfigError in one line."""
    scenario = load_workload(path, LoadOptions(), needs_rate=False)
    top = fields("", "scenario", read_yaml(path), SCENARIO_KEYS, path.parent)
    if scenario.pipelines:
        names = ", ".join(each.name for each in scenario.pipelines)
        reason = "has no transforms, which make the inputs of stages; write a serving file"
        refuse(f"{path}: pipelines", names, f"{reason} (docs/pipelines.md)")
    applications = tuple(_served(each) for each in numbered(declared(top)))
    models = {variant.model for each in applications for variant in each.variants}
    if models != {EMULATED} and EMULATED in models:
        lacking = next(
            variant
            for each in applications
            for variant in each.variants
            if variant.model == EMULATED
        )
        refuse(f"{path}: variant", lacking.name, "needs `model:`, which others of the file have")
    emulated = models == {EMULATED}
    backend = {
        "count": scenario.backends,
        "device": "emulated" if emulated else "auto",
        "swap": scenario.swap,
        "cpus": EMULATED_CPUS if emulated else 1,
    }
    router = {
        "policy": scenario.policy,
        "policy_options": {**_presets(scenario.policy), **scenario.policy_options},
        "fair_shares": scenario.fair_shares,
    }
    groups = [
        {"count": each.count, "kind": each.kind, "slower": each.slower} for each in scenario.groups
    ]
    told = {
        "applications": _unique(applications),
        "backend": backend,
        "backends": groups if emulated and len(scenario.kinds) > 1 else [],
        "router": router,
        # Both kinds of file have the same options there.
        "autoscaler": top.data.get("autoscaler"),
        "epochs": top.data.get("epochs"),
    }
    return read_config(told, str(path), path.parent)


def _presets(policy: str) -> dict[str, str]:
    """A scenario holds requests as a scaled fleet does, unless it says otherwise."""
    return presets(policy, scaled=True)


def _served(application: Application) -> Application:
    given = {**_presets(application.policy), **application.policy_options}
    return replace(application, policy_options=given)


def _unique(applications: tuple[Application, ...]) -> tuple[Application, ...]:
    """Variants under names of their own, as a deployment needs them."""
    names = [variant.name for each in applications for variant in each.variants]
    found: list[Application] = []
    for each in applications:
        variants = tuple(
            variant
            if names.count(variant.name) == 1
            else replace(variant, name=f"{each.name}-{variant.name}")
            for variant in each.variants
        )
        serving = variants[each.serving_place].name if each.serving else ""
        found.append(replace(each, variants=variants, serving=serving))
    return tuple(found)
