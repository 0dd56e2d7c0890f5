"""Policies of a configuration apart from the rest: they alone change without new processes."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import fermata
from fermata.applications.reader import bucketed, router_names
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.foundation.json_types import JsonObject

OF_ROUTER = ("policy", "policy_options")
OF_APPLICATION = (*OF_ROUTER, "backend_share")
PolicyDocument = Mapping[str, JsonObject]
"""Policies of the router, and of its applications by name."""


def policies(config: DeploymentConfig) -> PolicyDocument:
    """The policies, by the router's names of applications; Serve's `user_config`."""
    plain = config.model_dump()
    return {
        "router": {key: plain["router"][key] for key in OF_ROUTER},
        "applications": {
            name: {key: given[key] for key in OF_APPLICATION}
            for names, given in zip(_names(config), plain["applications"], strict=True)
            for name in names
        },
    }


def _names(config: DeploymentConfig) -> list[list[str]]:
    """The router's names of each application: one for each of its shape buckets."""
    names = iter(router_names(config.served))
    return [[next(names) for _ in bucketed((each,))] for each in config.applications]


def with_policies(config: DeploymentConfig, given: PolicyDocument) -> DeploymentConfig:
    """The same configuration with other policies; what is not given stays."""
    plain = config.model_dump()
    plain["router"] |= given.get("router", {})
    applications = given.get("applications", {})
    for names, own in zip(_names(config), plain["applications"], strict=True):
        own |= applications.get(names[0], {})
    return read_config(plain)


def mark_of(config: DeploymentConfig) -> str:
    """The same for configurations that differ in policies alone."""
    plain = config.model_dump(mode="json")
    for key in OF_ROUTER:
        del plain["router"][key]
    for own in plain["applications"]:
        for key in OF_APPLICATION:
            del own[key]
    return hashlib.blake2s(str(plain).encode()).hexdigest()


def version_of(config: DeploymentConfig) -> str:
    """The same while neither the code nor anything but policies has changed: Serve keeps the
    processes of a version."""
    folder = Path(fermata.__path__[0])
    files = sorted({*folder.glob("*/*.py"), *folder.glob("*/**/*.py")})
    told = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.blake2s(f"{mark_of(config)}{told}".encode()).hexdigest()
