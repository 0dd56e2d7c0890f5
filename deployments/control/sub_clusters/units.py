"""Units of placement, as plans see them: applications that pipelines join count as one. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fermata.applications.reader import router_names
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.pipelines import graph_of
from fermata.deployments.config.units import described, units_of
from fermata.foundation.errors import ConfigError
from fermata.partitioner.plan import PlacedModel, SubCluster, fits, memory_bytes
from fermata.profiles.store import BYTES_PER_MB


def in_units(
    config: DeploymentConfig, models: Mapping[str, PlacedModel]
) -> tuple[PlacedModel, ...]:
    """Applications as units, where each has all of its own."""
    return tuple(
        _joined(config, unit, [models[name] for name in names])
        for unit, names in units_of(config).items()
        if names[0] in models
    )


def _joined(config: DeploymentConfig, unit: str, models: Sequence[PlacedModel]) -> PlacedModel:
    """Several applications as one, which runs where all of them do. Its run times are those of the
    slowest by its SLO: a plan that counts backends counts rather too many."""
    first = models[0]
    if len(models) == 1:
        return first
    kinds = set(first.profiles).intersection(*(each.profiles for each in models))
    if first.profiles and not kinds:
        told = described(config, unit)
        raise ConfigError(f"no group of backends holds the SLO of all {told}, which live together")
    slowest = max(models, key=lambda each: _lateness(each, kinds))
    return replace(
        slowest,
        name=unit,
        rate_rps=sum(each.rate_rps for each in models),
        static_bytes=sum(each.static_bytes for each in models),
        dynamic_bytes=max(each.dynamic_bytes for each in models),
        load_cost=sum(each.load_cost for each in models),
        profiles={kind: slowest.profiles[kind] for kind in kinds},
    )


def _lateness(model: PlacedModel, kinds: set[str]) -> float:
    """Run time of one request over the SLO, on the slowest kind; 0 where it is not known."""
    times_ns = [model.profiles[kind].latency_ns(1) for kind in kinds]
    return max(times_ns, default=0) / max(1, model.slo_ns)


def check_room(
    config: DeploymentConfig, models: Sequence[PlacedModel], places: Sequence[SubCluster]
) -> None:
    """Refuse applications that have to live together, and have no room to."""
    units = units_of(config)
    for model in models:
        room = max(
            (each.memory_bytes for each in places if model.runs_on(each.kind)),
            default=0,
        )
        if len(units[model.name]) > 1 and not fits([model], room):
            needed = memory_bytes([model]) / BYTES_PER_MB
            raise ConfigError(
                f"{described(config, model.name)} live together and need {needed:,.0f} MB on one "
                f"backend, which has {room / BYTES_PER_MB:,.0f} MB for them; raise "
                "backend.memory_mb, or use smaller models"
            )


def stages_by_pipeline(config: DeploymentConfig) -> dict[str, tuple[str, ...]]:
    """By pipeline: the router's names of the applications that run its stages."""
    names = router_names(config.served)
    return {
        each.name: tuple(names[at] for at in sorted(graph_of(each, config.served).applications))
        for each in config.pipelines
    }
