"""What the catalog says of policies is what their sources do."""

import random
from dataclasses import replace

import pytest

from fermata.deployments.config.deployment import read_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.catalog import POLICIES
from fermata.router.policies.family import alone
from fermata.simulator.scenario.scenario import read_scenario

OWNING = ("ramsis", "jellyfish", "sneakpeek", "partitioned")
REFUSAL = (
    r"has backends of its own, which epochs inside one router cannot move; give each sub-cluster a "
    r"router \(sub_clusters.count\), leave epochs out, or take one of def"
)


@pytest.mark.parametrize("name", POLICIES)
def test_policy_owns_backends_as_its_sources_do(name: str) -> None:
    policy = POLICIES[name]
    options = policy.defaults
    if name == "model-switching":
        options = replace(options, sustained_rps=(100.0,))
    families = alone((0,), accuracy=(0.5,), input_sizes=(8,))
    (source,) = policy.build(families, options, random.Random(0))
    assert source.owns_backends == policy.owns_backends


@pytest.mark.parametrize("policy", OWNING)
def test_epochs_are_refused_where_a_policy_owns_backends(policy: str) -> None:
    application = {
        "name": "a",
        "slo_ms": 50,
        "variants": [{"name": "a-1", "latency_ms": [5, 6], "accuracy": 0.8}],
    }
    scenario = {"backends": 2, "rate_rps": 10, "applications": [application], "policy": policy}
    epochs = {"sub_clusters": 2, "memory_mb": 1000, "every_s": 6}
    read_scenario(scenario)
    with pytest.raises(ConfigError, match=f"policy='{policy}': {REFUSAL}"):
        read_scenario({**scenario, "epochs": epochs})
    own = {"applications": [{**application, "policy": policy}], "policy": "deferred"}
    with pytest.raises(ConfigError, match=f"policy='{policy}': {REFUSAL}"):
        read_scenario({**scenario, **own, "epochs": epochs})


@pytest.mark.parametrize("policy", OWNING)
def test_a_deployment_with_epochs_refuses_it_too(policy: str) -> None:
    variant = {"name": "a-1", "model": "digits:nano", "accuracy": 0.8, "latency_ms": [5, 6]}
    application = {"name": "a", "slo_ms": 50, "variants": [variant]}
    deployment = {
        "applications": [application],
        "router": {"policy": policy},
        "backend": {"device": "emulated"},
    }
    read_config(deployment)
    with pytest.raises(ConfigError, match=f"policy='{policy}': {REFUSAL}"):
        read_config({**deployment, "epochs": {"sub_clusters": 2}})


def test_a_router_of_several_sub_clusters_refuses_it_too() -> None:
    one = ApplicationSpec("a", ms(50), (VariantSpec("v", (ms(5),), accuracy=0.8),))
    with pytest.raises(ConfigError, match=REFUSAL):
        assemble(RouterConfig((one,), "ramsis", sub_clusters=2))


@pytest.mark.parametrize("policy", [*OWNING, "timeout"])
def test_it_moves_between_routers(policy: str) -> None:
    applications = [
        {
            "name": name,
            "slo_ms": 50,
            "variants": [
                {"name": f"{name}-1", "model": "emulated", "accuracy": 0.8, "latency_ms": [5, 6]}
            ],
        }
        for name in ("a", "b")
    ]
    deployment = {
        "applications": applications,
        "router": {"policy": policy},
        "backend": {"device": "emulated", "count": 4},
        "epochs": {},
    }
    read_config({**deployment, "sub_clusters": {"count": 2}})
    read_config({**deployment, "sub_clusters": {"count": "auto"}})
