"""The placement problem of a scenario or a serving file: its applications, and a load."""

from dataclasses import replace

from fermata.applications.accuracy_goal import check_accuracy
from fermata.autoscaler.options import EpochOptions
from fermata.autoscaler.placer import placement_problem
from fermata.foundation.refusals import refuse
from fermata.partitioner.plan import PlacedModel, Problem
from fermata.profiles.store import BYTES_PER_MB
from fermata.simulator.pipelines.sizing import stage_needs
from fermata.simulator.scaling import placed_models
from fermata.simulator.scenario.scenario import Scenario

PROBLEM_KEYS = frozenset(("models", "sub_clusters"))
"""Top-level keys that neither scenarios nor serving files have."""


def is_problem(data: object) -> bool:
    """Whether a file's content is a placement problem of its own."""
    return isinstance(data, dict) and bool(PROBLEM_KEYS & set(data))


def problem_of(
    scenario: Scenario,
    sub_clusters: int = 0,
    memory_mb: float = 0.0,
    accuracy: float | None = None,
) -> Problem:
    """Place each application, with all its variants, as the control loop would.

    Number of sub-clusters and memory of a backend are those of `epochs`, and the accuracy to hold
    is that of `autoscaler`, unless given.
    """
    if accuracy is None and scenario.autoscaler is not None:
        accuracy = scenario.autoscaler.accuracy
    if scenario.pipelines and scenario.rate_rps is None:
        refuse("--rate-rps", None, "is needed with pipelines: the queries a second to plan for")
    if accuracy is not None and scenario.pipelines:
        rule = "does not go with pipelines, whose accuracy is that of the whole; leave it out"
        refuse("--accuracy", accuracy, rule)
    policy, options = scenario.policy, scenario.policy_options
    check_accuracy(accuracy, scenario.applications, policy, options, "--accuracy")
    epochs = scenario.epochs or EpochOptions(sub_clusters=1)
    if sub_clusters:
        epochs = replace(epochs, sub_clusters=sub_clusters)
    if memory_mb:
        epochs = replace(epochs, memory_bytes=int(memory_mb * BYTES_PER_MB))
    pairs = zip(placed_models(scenario, accuracy), rates(scenario), strict=True)
    models = [replace(model, rate_rps=rate_rps) for model, rate_rps in pairs]
    return placement_problem(epochs, _with_queries(scenario, models))


def _with_queries(scenario: Scenario, models: list[PlacedModel]) -> list[PlacedModel]:
    """The applications, where those that run stages have the requests of queries too."""
    found = list(models)
    for number, need in stage_needs(scenario).items():
        found[number] = replace(
            found[number],
            rate_rps=found[number].rate_rps + need.rate_rps,
            batch_size=need.batch_size,
            utilisation=need.utilisation,
        )
    return found


def rates(scenario: Scenario) -> list[float]:
    """Requests per second of each application, without those that queries make."""
    if scenario.rate_rps is not None:
        return [share * scenario.rate_rps for share in scenario.shares]
    streams = [group.fps for each in scenario.applications for group in each.clients]
    if not scenario.knows_rate() or None in streams or not streams:
        refuse("--rate-rps", None, "is needed: requests per second of all applications")
    return [each.declared_rps for each in scenario.applications]
