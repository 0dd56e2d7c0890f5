"""Sub-clusters with a router each: how many, what lives in all of them, who has which backends."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fermata.applications.reader import router_names
from fermata.deployments.config.base import Section
from fermata.deployments.config.scaling import EpochsConfig

if TYPE_CHECKING:
    from fermata.deployments.config.deployment import DeploymentConfig


class SubClustersConfig(Section):
    """Routers of a deployment: each has applications, backends, a term and a standby of its own.
    See docs/scale.md."""

    count: Annotated[int, Field(ge=1)] = 1
    """How many. Backends are shared out evenly, and applications by their memory. With `epochs`,
    applications move between them as their rates change."""
    spread: list[str] = []
    """Applications that live in every one of them. Their requests are split by how idle the
    backends of each are."""

    @property
    def several(self) -> bool:
        return self.count > 1


def check_sub_clusters(config: "DeploymentConfig") -> None:
    """Refuse what several routers cannot do, and what would leave one of them without work."""
    given = config.sub_clusters
    known = {each.name for each in config.applications}
    for name in given.spread:
        if name not in known:
            raise ValueError(f"sub_clusters.spread: application {name!r} is unknown")
    if not given.several:
        return
    where = f"sub_clusters.count={given.count}"
    for key, section in (
        ("backends", config.backends or None),
        ("repository: open", config.repository == "open" or None),
    ):
        if section is not None:
            raise ValueError(
                f"{where} and {key}: models and backends are placed once; leave one out"
            )
    _check_epochs(config, where)
    scaled = config.autoscaler
    if scaled is not None and scaled.maximum < given.count:
        raise ValueError(f"{where} needs as many backends; autoscaler.maximum={scaled.maximum}")
    if config.backend.count < given.count:
        raise ValueError(f"{where} needs as many backends; backend.count={config.backend.count}")
    alone = sum(each.name not in given.spread for each in config.applications)
    if not given.spread and alone < given.count:
        raise ValueError(
            f"{where} with {alone} applications: name one in sub_clusters.spread, or lower count"
        )
    for each in config.applications:
        if each.name in given.spread and each.sequences:
            raise ValueError(
                f"sub_clusters.spread: {each.name} keeps sequences, which stay where their state is"
            )


def _check_epochs(config: "DeploymentConfig", where: str) -> None:
    """Refuse epochs of another number of sub-clusters, and what cannot move."""
    epochs = config.epochs
    if epochs is None:
        return
    given = "sub_clusters" in epochs.model_fields_set
    if given and epochs.sub_clusters != config.sub_clusters.count:
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


def backend_counts(config: "DeploymentConfig") -> list[int]:
    """Backends of each sub-cluster."""
    count, whole = config.sub_clusters.count, config.backend.count
    return [whole // count + (number < whole % count) for number in range(count)]


def restricted(
    config: "DeploymentConfig", sub_cluster: int, served: Iterable[str]
) -> "DeploymentConfig":
    """The deployment as the router of one sub-cluster sees it. `served` are applications by the
    router's names. Where they move, every router knows all of them."""
    named = dict(zip(router_names(config.served), config.served, strict=True))
    kept = {named[name].name for name in served}
    if epochs_between(config) is not None:
        kept = {each.name for each in config.applications}
    applications = tuple(each for each in config.applications if each.name in kept)
    count = backend_counts(config)[sub_cluster]
    backend = config.backend.model_copy(update={"count": count})
    return config.model_copy(update={"applications": applications, "backend": backend})
