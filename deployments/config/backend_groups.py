"""Groups of backends: one deployment may have several kinds of devices."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fermata.deployments.config.base import Positive, Section

if TYPE_CHECKING:
    from fermata.deployments.config.deployment import DeploymentConfig

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


def groups_of(config: "DeploymentConfig") -> "tuple[DeploymentConfig, ...]":
    """The deployment as the backends of each group see it; itself where there are no groups."""
    if not config.backends:
        return (config,)
    found: list[DeploymentConfig] = []
    for group in config.backends:
        given = group.model_dump(exclude_none=True)
        backend = config.backend.model_copy(update=given)
        if not backend.kind and backend.slower != 1.0:
            kind = f"{backend.device} x {backend.slower:g}"
            backend = backend.model_copy(update={"kind": kind})
        found.append(config.model_copy(update={"backend": backend, "backends": []}))
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
    return {**data, "backend": {**backend, "count": total}}
