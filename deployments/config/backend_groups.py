"""Groups of backends: one deployment may have several kinds of devices."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fermata.deployments.config.base import Positive, Section
from fermata.deployments.config.scaling import AutoscalerConfig
from fermata.deployments.config.units import described, pipelines_within, units_of

if TYPE_CHECKING:
    from fermata.deployments.config.deployment import DeploymentConfig

OF_GROUPS = ("minimum", "maximum", "models")
"""Options of a group that are not those of its backends."""
Device = Literal["auto", "cpu", "cuda", "emulated"]
Resources = dict[str, Positive]


class BackendGroupConfig(Section):
    """Backends of one kind. Whatever a group does not say is as in `backend`."""

    count: Annotated[int, Field(ge=1)]
    """How many."""
    kind: str = ""
    """Name of this kind, under which its run times are known; absent: as the device is called."""
    slower: Positive = 1.0
    """Run times over those of the profiles, for emulated devices; others are measured."""
    device: Device | None = None
    """What runs their batches."""
    memory_mb: Positive | None = None
    """Budget for models on one of them."""
    cpus: Annotated[float, Field(ge=0)] | None = None
    """CPU cores that Ray sets aside for each."""
    resources: Resources | None = None
    """Custom resources of Ray that each needs: only machines that offer them get one."""
    minimum: Annotated[int, Field(ge=1)] | None = None
    """Fewest of them, with `autoscaler`; absent: one."""
    maximum: Annotated[int, Field(ge=1)] | None = None
    """Most of them, with `autoscaler`; absent: `autoscaler.maximum`."""
    models: list[str] = []
    """Applications that may live on them; empty: all."""


def are_apart(config: "DeploymentConfig") -> bool:
    """Whether each group is a sub-cluster, with a router of its own: so each is scaled by what its
    own applications need, and holds those alone. Else every router has its part of all groups."""
    own = any(each.minimum or each.maximum or each.models for each in config.backends)
    is_decided = config.autoscaler is not None or config.epochs is not None
    return bool(config.backends) and (own or is_decided)


def routers_told(config: "DeploymentConfig") -> str:
    """The part of a file that says how many routers there are, for messages."""
    if are_apart(config):
        return f"backends ({len(config.backends)} groups, a router each)"
    return f"sub_clusters.count={config.sub_clusters.count}"


def check_apart(config: "DeploymentConfig") -> None:
    """Refuse groups that are apart and contradict themselves, or leave an application out."""
    if not are_apart(config):
        return
    if len(config.backends) < 2:
        raise ValueError("backends has one group: say it in backend, with autoscaler or epochs")
    count = config.sub_clusters.count
    if count != len(config.backends):
        raise ValueError(
            f"sub_clusters.count={count} and {len(config.backends)} groups of backends, each with "
            "a router of its own; leave count out"
        )
    known = {each.name for each in config.applications}
    for index, group in enumerate(config.backends):
        _check_group(config, f"backends.{index}", group)
        for name in group.models:
            if name not in known:
                raise ValueError(f"backends.{index}.models: application {name!r} is unknown")
    if config.autoscaler is not None:
        _check_scaled(config, config.autoscaler)
    homeless = known - {name for at in range(count) for name in allowed_on(config, at)}
    if homeless:
        raise ValueError(f"no group of backends has {min(homeless)!r} among its models; add it")
    for unit, names in units_of(config).items():
        if not any(allowed_on(config, at).issuperset(names) for at in range(count)):
            raise ValueError(
                f"no group of backends has {described(config, unit)} among its models, which live "
                "together; add them to one"
            )


def _check_scaled(config: "DeploymentConfig", scaled: AutoscalerConfig) -> None:
    """Refuse limits of the deployment that its groups do not keep to."""
    if scaled.to_zero:
        # A start waits for the run times on every group, which nobody tells where none is left.
        raise ValueError(
            "autoscaler.to_zero and groups of backends: each keeps its minimum; leave to_zero out"
        )
    count = sum(each.count for each in config.backends)
    if count > scaled.maximum:
        raise ValueError(f"backends has {count}, above autoscaler.maximum={scaled.maximum}")
    fewest = sum(limits_of(config, each)[0] for each in config.backends)
    if scaled.minimum > fewest:
        raise ValueError(
            f"autoscaler.minimum={scaled.minimum} is above {fewest}, the minima of all groups; say "
            "it in backends"
        )


def _check_group(config: "DeploymentConfig", where: str, group: BackendGroupConfig) -> None:
    limited = group.minimum is not None or group.maximum is not None
    if limited and config.autoscaler is None:
        raise ValueError(f"{where} has a minimum or a maximum, which needs autoscaler: {{}}")
    if config.autoscaler is None:
        return
    least, most = limits_of(config, group)
    if not least <= group.count <= most:
        raise ValueError(f"{where}.count={group.count} is not from {least} to {most}, its limits")


def limits_of(config: "DeploymentConfig", group: BackendGroupConfig) -> tuple[int, int]:
    """The fewest and the most backends of a group."""
    scaled = config.autoscaler
    if scaled is None:
        return group.count, group.count
    return group.minimum or 1, group.maximum or scaled.maximum


def allowed_on(config: "DeploymentConfig", group: int) -> frozenset[str]:
    """Applications that may live on a group."""
    names = config.backends[group].models or [each.name for each in config.applications]
    return frozenset(names)


def own_config(config: "DeploymentConfig", sub_cluster: int) -> "DeploymentConfig":
    """The deployment as the backends of one sub-cluster see it, where that is a group."""
    return groups_of(config)[sub_cluster] if are_apart(config) else config


def groups_of(config: "DeploymentConfig") -> "tuple[DeploymentConfig, ...]":
    """The deployment as the backends of each group see it; itself where there are no groups."""
    if not config.backends:
        return (config,)
    found: list[DeploymentConfig] = []
    for number, group in enumerate(config.backends):
        given = group.model_dump(exclude_none=True, exclude=set(OF_GROUPS))
        backend = config.backend.model_copy(update=given)
        if not backend.kind and backend.slower != 1.0:
            kind = f"{backend.device} x {backend.slower:g}"
            backend = backend.model_copy(update={"kind": kind})
        allowed = allowed_on(config, number)
        own = tuple(each for each in config.applications if each.name in allowed)
        update = {
            "backend": backend,
            "backends": [],
            "applications": own,
            "pipelines": pipelines_within(config, allowed),
        }
        found.append(config.model_copy(update=update))
    return tuple(found)


def counted(data: dict[Any, Any]) -> dict[Any, Any]:
    """The document with `backend.count` as its groups say it; refuses a file that says both."""
    groups = data.get("backends")
    if not isinstance(groups, list) or not groups:
        return data
    backend = data.get("backend") or {}
    counts = [each.get("count") for each in groups if isinstance(each, dict)]
    whole = [each for each in counts if isinstance(each, int) and each > 0]
    if not isinstance(backend, dict) or len(whole) < len(groups):
        # What is wrong there is said by whoever reads it.
        return data
    total = sum(whole)
    given = backend.get("count", total)
    if given != total:
        raise ValueError(
            f"backend.count={given!r} and backends, which has {total}: leave one of them out"
        )
    return _with_routers({**data, "backend": {**backend, "count": total}}, groups)


def _with_routers(data: dict[Any, Any], groups: list[Any]) -> dict[Any, Any]:
    """The document with a router for each group, where these are apart."""
    routers = data.get("sub_clusters") or {}
    decided = data.get("autoscaler") is not None or data.get("epochs") is not None
    own = any(each.get(key) for each in groups for key in OF_GROUPS)
    if not isinstance(routers, dict) or not (decided or own) or len(groups) < 2:
        return data
    return {**data, "sub_clusters": {"count": len(groups), **routers}}
