"""Scenarios that are played: where a serving file has several routers, each serves with its own
backends and applications alone."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fermata.applications.reader import bucketed
from fermata.autoscaler.sub_cluster_limits import spread
from fermata.commands.files.workload import LoadOptions, is_serving_file, workload_of
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.foundation.validation import read_yaml
from fermata.profiles.profile import Profile, slowed
from fermata.router.policies.catalog import POLICIES
from fermata.simulator.scenario.scenario import Scenario

if TYPE_CHECKING:
    from fermata.deployments.config.deployment import DeploymentConfig

SOLVE_S = 2.0
"""Time to search for homes in, as a control plane has at its start."""


def load_played(path: Path, load: LoadOptions, needs_rate: bool = True) -> Scenario:
    """The scenario in a file, or that of a serving file under a load, with its sub-clusters."""
    data = read_yaml(path)
    scenario = workload_of(path, data, load, needs_rate)
    if not is_serving_file(data):
        return scenario
    from fermata.deployments.config.deployment import read_config

    config = read_config(data, str(path), path.parent)
    if not config.sub_clusters.several:
        return scenario
    try:
        return _in_sub_clusters(config, scenario)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _in_sub_clusters(config: "DeploymentConfig", scenario: Scenario) -> Scenario:
    """The scenario in as many sub-clusters. One pool of all backends would forecast too well."""
    count = config.sub_clusters.count
    if count == "auto":
        refuse("sub_clusters.count", count, "is found while serving; give a number to simulate")
    _check(config, scenario, count)
    if scenario.epochs is not None:
        return replace(scenario, epochs=replace(scenario.epochs, sub_clusters=count))
    places = _places(config, scenario.backends, count)
    return replace(scenario, homes=_homes(config, scenario), places=places)


def _check(config: "DeploymentConfig", scenario: Scenario, count: int) -> None:
    """Refuse what lives in several sub-clusters, or has backends that are counted for itself."""
    from fermata.deployments.config.backend_groups import routers_told

    if config.sub_clusters.spread:
        rule = "lives in several routers, which is not simulated; leave spread out"
        refuse("sub_clusters.spread", config.sub_clusters.spread, rule)
    if scenario.backends < count:
        refuse("--backends", scenario.backends, f"{routers_told(config)} needs as many backends")
    if scenario.autoscaler is not None and scenario.epochs is None:
        rule = "with autoscaler is simulated with epochs alone; add epochs, or leave one out"
        raise ConfigError(f"{routers_told(config)}: {rule}")
    for each in scenario.applications:
        policy = each.policy or scenario.policy
        if POLICIES[policy].owns_backends:
            rule = "has backends of its own, which are not simulated in sub-clusters"
            refuse("policy", policy, f"{rule}; simulate its applications in a file of their own")


def _homes(config: "DeploymentConfig", scenario: Scenario) -> tuple[int, ...]:
    """By application: its sub-cluster by the plan that a control plane starts with."""
    from fermata.deployments.config.backend_groups import are_apart, groups_of
    from fermata.deployments.control.sub_clusters.homes import (
        homes_of,
        members_of,
        starting_problem,
    )

    # The solver's libraries are needed for placement alone.
    from fermata.partitioner.solver.two_level import solve_two_level

    profiles = {
        variant.name: variant.profile
        for each in bucketed(scenario.applications)
        for variant in each.variants
        if variant.profile is not None
    }
    by_group = [_slowed(profiles, each) for each in groups_of(config)] if are_apart(config) else []
    problem = starting_problem(config, profiles, by_group=by_group)
    plan = solve_two_level(problem, SOLVE_S).plan
    homes = homes_of(config, plan, problem=problem, by_group=by_group)
    members = members_of(config)
    return tuple(homes[members[each.name][0]][0] for each in config.applications)


def _slowed(profiles: dict[str, Profile], group: "DeploymentConfig") -> dict[str, Profile]:
    """Run times on a group of backends."""
    slower = group.backend.slower
    return {name: slowed(each, slower) for name, each in profiles.items()}


def _places(config: "DeploymentConfig", backends: int, count: int) -> tuple[int, ...]:
    """By backend: its sub-cluster. Each has its even part of every group, as live, or is one."""
    from fermata.deployments.config.backend_groups import are_apart

    groups = [each.count for each in config.backends]
    if are_apart(config):
        if sum(groups) != backends:
            rule = f"takes the place of groups with limits or models of their own, {groups}"
            refuse("--backends", backends, f"{rule}; leave it out")
        return tuple(place for place, each in enumerate(groups) for _ in range(each))
    # A number from the command line takes the place of the groups.
    groups = groups if sum(groups) == backends else [backends]
    return tuple(
        place
        for group in groups
        for place, part in enumerate(spread(group, count))
        for _ in range(part)
    )
