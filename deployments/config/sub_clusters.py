"""Sub-clusters with a router each: how many, what lives in all of them, who has which backends."""

import itertools
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fermata.applications.reader import router_names
from fermata.autoscaler.sub_cluster_limits import floors
from fermata.autoscaler.sub_cluster_limits import spread as spread_evenly
from fermata.deployments.config.backend_groups import (
    BackendGroupConfig,
    are_apart,
    groups_of,
    limits_of,
    own_config,
    routers_told,
)
from fermata.deployments.config.base import Section
from fermata.deployments.config.scaling import EpochsConfig
from fermata.deployments.config.units import (
    check_unit_names,
    pipelines_within,
    spread_over,
    units_of,
)

if TYPE_CHECKING:
    from fermata.deployments.config.deployment import DeploymentConfig


class SubClustersConfig(Section):
    """Routers of a deployment: each has applications, backends, a term and a standby of its own.
    See docs/scale.md."""

    count: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    """How many. Backends are shared out evenly, and applications by their memory. With `epochs`,
    applications move between them as their rates change. `auto`: as many as the rates and the
    memory of a backend need; see docs/scale.md. Groups of backends that are scaled have one
    each."""
    count_max: Annotated[int, Field(ge=2)] = 4
    """Most of them with `count: auto`. So many routers run; those that are not needed idle."""
    spread: list[str] = []
    """Applications that live in every one of them, or on every group of backends that may have
    them and holds their SLO. Their requests are split by how idle the backends and the router
    of each are. A pipeline may be named, too: all applications that it needs are spread with it,
    and those of pipelines that share a stage with it."""

    @property
    def routers(self) -> int:
        """Routers that run: one for each sub-cluster that there may be."""
        return self.count_max if self.count == "auto" else self.count

    @property
    def several(self) -> bool:
        return self.routers > 1


def check_sub_clusters(config: "DeploymentConfig") -> None:
    """Refuse what several routers cannot do, and what would leave one of them without work."""
    given = config.sub_clusters
    known = {each.name for each in config.applications} | {each.name for each in config.pipelines}
    for name in given.spread:
        if name not in known:
            raise ValueError(f"sub_clusters.spread: application or pipeline {name!r} is unknown")
    if not given.several:
        return
    check_unit_names(config)
    where = routers_told(config)
    if config.repository == "open":
        raise ValueError(f"{where} and repository: open: models are placed once; leave one out")
    _check_epochs(config, where)
    _check_groups(config, where)
    if given.count == "auto":
        _check_auto(config, where)
    else:
        _check_count(config, where, given.count)
    for each in config.applications:
        if each.name in given.spread and each.sequences:
            raise ValueError(
                f"sub_clusters.spread: {each.name} keeps sequences, which stay where their state is"
            )


def _check_count(config: "DeploymentConfig", where: str, count: int) -> None:
    """Refuse a number for which there are not enough backends or applications."""
    scaled, spread = config.autoscaler, spread_over(config)
    if scaled is not None and scaled.maximum < count:
        raise ValueError(f"{where} needs as many backends; autoscaler.maximum={scaled.maximum}")
    if config.backend.count < count:
        raise ValueError(f"{where} needs as many backends; backend.count={config.backend.count}")
    fewer = "have fewer groups" if are_apart(config) else "lower count"
    alone = len(units_of(config))
    if not spread and alone < count:
        together = " that live apart" if config.pipelines else ""
        raise ValueError(
            f"{where} with {alone} applications{together}: name one in sub_clusters.spread, or "
            f"{fewer}"
        )


def _check_groups(config: "DeploymentConfig", where: str) -> None:
    """Refuse groups of which some sub-cluster would have no backend: each has all kinds."""
    if config.backends and config.sub_clusters.count == "auto":
        raise ValueError(f"{where} and backends: their number is fixed; give a count")
    for index, group in enumerate(config.backends):
        if group.count < config.sub_clusters.routers and not are_apart(config):
            raise ValueError(
                f"{where} needs as many backends in each group; backends.{index}.count="
                f"{group.count}"
            )


def _check_auto(config: "DeploymentConfig", where: str) -> None:
    """Refuse a number that nothing decides, or that two rules do."""
    if config.epochs is None:
        raise ValueError(f"{where} needs epochs, at which it is decided; add epochs: {{}}")
    if config.autoscaler is not None and config.autoscaler.to_zero:
        raise ValueError(f"{where} and autoscaler.to_zero both end backends; leave one out")


def most_open(config: "DeploymentConfig") -> int:
    """Most sub-clusters that can have a backend, and something to serve, with `count: auto`."""
    given, scaled = config.sub_clusters, config.autoscaler
    alone = len(units_of(config))
    backends = config.backend.count if scaled is None else scaled.maximum
    return min(given.routers, backends, *(() if given.spread else (alone,)))


def _check_epochs(config: "DeploymentConfig", where: str) -> None:
    """Refuse epochs of another number of sub-clusters, and what cannot move."""
    epochs = config.epochs
    if epochs is None:
        return
    # The usual number is in every copy of a configuration, whether its file gave it or not.
    usual = EpochsConfig.model_fields["sub_clusters"].default
    if epochs.sub_clusters not in (usual, config.sub_clusters.count):
        raise ValueError(f"{where} and epochs.sub_clusters={epochs.sub_clusters}; leave that out")
    for each in config.applications:
        if each.sequences:
            raise ValueError(
                f"{where} and epochs: {each.name} keeps sequences, which cannot move; leave out one"
            )


def epochs_inside(config: "DeploymentConfig") -> EpochsConfig | None:
    """Epochs of sub-clusters that are parts of one router."""
    return None if config.sub_clusters.several else config.epochs


def is_steered_alone(config: "DeploymentConfig") -> bool:
    """Whether windows or epochs are decided for one router by itself."""
    steered = config.autoscaler is not None or config.epochs is not None
    return steered and not config.sub_clusters.several


def epochs_between(config: "DeploymentConfig") -> EpochsConfig | None:
    """Epochs at which applications move between routers."""
    return config.epochs if config.sub_clusters.several else None


def loads_by_router(config: "DeploymentConfig") -> bool:
    """Whether routers have their backends load what lives there. Backends that swap bring each
    model in by themselves."""
    return config.sub_clusters.several and not config.backend.swap


def backend_counts(config: "DeploymentConfig", opened: int | None = None) -> list[int]:
    """Backends of each sub-cluster, where the first so many are open; all unless given."""
    routers = config.sub_clusters.routers
    if are_apart(config):
        return [group.count for group in config.backends]
    if config.backends:
        parts = [spread_evenly(group.count, routers) for group in config.backends]
        return [sum(counts) for counts in zip(*parts, strict=True)]
    own = spread_evenly(config.backend.count, routers if opened is None else opened)
    return [*own, *[0] * (routers - len(own))]


def fewest_backends(config: "DeploymentConfig") -> int:
    """Backends that one router has at the start. Where their number follows from the load, that is
    the even part of one among the most routers."""
    if config.sub_clusters.count == "auto":
        return max(1, config.backend.count // config.sub_clusters.routers)
    return config.backend.count


def groups_in_sub_clusters(
    config: "DeploymentConfig",
) -> "list[tuple[DeploymentConfig, int]]":
    """The deployment as the backends of each group see it, with each sub-cluster: first those of
    the first group. Where groups are apart, each with its own."""
    if are_apart(config):
        return [(each, number) for number, each in enumerate(groups_of(config))]
    return list(itertools.product(groups_of(config), range(config.sub_clusters.routers)))


def backend_limits(config: "DeploymentConfig") -> list[tuple[int, int]]:
    """The fewest and the most backends that the autoscaler may have in each sub-cluster."""
    spec, routers = config.autoscaler, config.sub_clusters.routers
    assert spec is not None
    if are_apart(config):
        return [limits_of(config, group) for group in config.backends]
    return [(least, spec.maximum) for least in floors(spec.fewest, routers)]


def own_groups(config: "DeploymentConfig", sub_cluster: int) -> list[BackendGroupConfig]:
    """The groups with as many backends as one sub-cluster has of each."""
    routers = config.sub_clusters.routers
    return [
        group.model_copy(update={"count": spread_evenly(group.count, routers)[sub_cluster]})
        for group in config.backends
    ]


def serving(config: "DeploymentConfig", names: Collection[str]) -> "DeploymentConfig":
    """The deployment with these applications alone, and the pipelines that need no others."""
    applications = tuple(each for each in config.applications if each.name in names)
    pipelines = pipelines_within(config, {each.name for each in applications})
    return config.model_copy(update={"applications": applications, "pipelines": pipelines})


def restricted(
    config: "DeploymentConfig", sub_cluster: int, served: Iterable[str]
) -> "DeploymentConfig":
    """The deployment as the router of one sub-cluster sees it. `served` are applications by the
    router's names. Where they move, every router knows all of them."""
    named = dict(zip(router_names(config.served), config.served, strict=True))
    kept = {named[name].name for name in served}
    own = own_config(config, sub_cluster)
    if epochs_between(config) is not None:
        kept = {each.name for each in own.applications}
    kept_config = serving(own, kept)
    if are_apart(config):
        return kept_config
    if config.sub_clusters.count == "auto":
        # Its number changes, and the configuration of a router must not.
        return kept_config
    count = backend_counts(config)[sub_cluster]
    backend = config.backend.model_copy(update={"count": count})
    groups = own_groups(config, sub_cluster)
    return kept_config.model_copy(update={"backend": backend, "backends": groups})
