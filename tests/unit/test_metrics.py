"""The page of metrics: complete, readable by Prometheus' own parser, and documented."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import parser
from router_world import World
from snapshots import rated

from fermata.deployments.control.page.history import History
from fermata.deployments.metrics.families import FAMILIES, prometheus_text
from fermata.deployments.metrics.reference_page import page
from fermata.deployments.specs.status import (
    AdviceStatus,
    DeploymentStatus,
    PromiseStatus,
    ScalingStatus,
)
from fermata.foundation.units import ms, seconds
from fermata.router.core.signals import Promise
from fermata.router.links.messages import Answered, BackendStats, Done, FrontendStats
from fermata.router.telemetry.histogram import LATENCY_NS
from fermata.router.telemetry.snapshot import (
    CameraSnapshot,
    LookSnapshot,
    PipelineSnapshot,
    PolicySnapshot,
    StageSnapshot,
)

ROOT = Path(__file__).parents[2]


def told(world: World, history: History | None = None) -> DeploymentStatus:
    return rated(world.router, history or History())


def busy_world() -> World:
    """One request served in time, one refused, everything told."""
    world = World(policy="eager")
    world.submit(1)
    world.advance(ms(5))
    world.hear(world.backend, Done(1, ms(5), 0))
    latency = (0, 0, 1) + (0,) * (len(LATENCY_NS) - 2)
    answered = Answered("cats", {"good": 1, "expired": 1, "cancelled": 5}, latency, ms(5))
    tenants = (("cameras", {"good": 3, "rate": 2}),)
    stats = FrontendStats((answered,), memory_bytes=123, tenants=tenants)
    world.hear(world.frontend, stats)
    world.hear(world.frontend, FrontendStats((), memory_bytes=123, tenants=tenants))
    gpu = BackendStats((("v", 1, ms(30)),), 1, 10, 20, 30, 40, 0.5, (("v", 2),))
    world.hear(world.backend, gpu)
    return world


def samples(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_prometheus_reads_every_family() -> None:
    scaling = ScalingStatus(False, [AdviceStatus(3, 1, "", 2.0)], {}, 2, [])
    policies = {"cats": PolicySnapshot({"table_failures": 1.0}, "ended with status 1")}
    status = told(busy_world())
    promises = {"cats": PromiseStatus(Promise(0.8, 0.01), 0.79, 0.02)}
    looks = LookSnapshot(9, 4, 1, 3, 0, 2, 2, {0: 0.75, 1: 0.25})
    cats = replace(status.router.applications["cats"], looks=looks)
    applications = {**status.router.applications, "cats": cats}
    camera = CameraSnapshot("cats", "gate", 5e6, 8, 8, 224, 160, 640, "v", 5, 10, 1, True, "")
    stages = [StageSnapshot("cats", 1, 2, 3)]
    pipelines = {"pets": PipelineSnapshot(ms(100), {"good": 3}, 0.9, stages)}
    told_router = replace(
        status.router,
        policies=policies,
        applications=applications,
        cameras=[camera],
        pipelines=pipelines,
    )
    status = replace(status, router=told_router)
    status = replace(status, scaling=scaling, promises=promises)
    text = prometheus_text(status)
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    for family in FAMILIES:
        # The parser leaves `_total` off.
        name = family.full_name.removesuffix("_total") if family.kind == "counter" else ""
        found = families[name or family.full_name]
        assert found.type == family.kind
        # A world with everything in it leaves none empty, but what needs an accuracy.
        if family.name != "accuracy_estimate":
            assert found.samples, family.name
            assert set(found.samples[0].labels) - {"le"} == set(family.labels)


def test_figures_are_those_of_the_snapshot() -> None:
    found = samples(prometheus_text(told(busy_world())))
    assert found["fermata_requests_total{application=cats}"] == 1
    assert found["fermata_answered_total{application=cats,outcome=good}"] == 1
    assert found["fermata_tenant_answered_total{outcome=good,tenant=cameras}"] == 6
    assert found["fermata_tenant_answered_total{outcome=rate,tenant=cameras}"] == 4
    # The client's own doing is not bad; the one that expired is, of two.
    assert found["fermata_bad_rate{application=cats}"] == 0.5
    assert found["fermata_latency_seconds_bucket{application=cats,le=0.002}"] == 0
    assert found["fermata_latency_seconds_bucket{application=cats,le=0.005}"] == 1
    assert found["fermata_latency_seconds_bucket{application=cats,le=+Inf}"] == 1
    assert found["fermata_latency_seconds_sum{application=cats}"] == 0.005
    assert found["fermata_backend_busy_seconds_total{subcluster=0}"] == 0.005
    assert found["fermata_batch_size_sum{application=cats,variant=v}"] == 1
    assert found["fermata_gpu_used{backend=5}"] == 0.5
    assert found["fermata_process_memory_bytes{number=2,role=frontend}"] == 123
    assert found["fermata_model_load_seconds_total{variant=v}"] == pytest.approx(0.03)


def test_without_a_gpu_nothing_is_said_of_one() -> None:
    world = World()
    world.hear(world.backend, BackendStats())
    assert not [name for name in samples(prometheus_text(told(world))) if "gpu" in name]


def test_rates_are_of_the_last_minute_and_of_the_same_router() -> None:
    world = busy_world()
    history = History()
    history.add(told(world).router)
    assert told(world, history).bad_rates == {"cats": 0.0}
    world.now_ns += seconds(10)
    found = told(world, history)
    assert found.idle_fractions == [1.0]
    # A router that has come anew counts from zero, and so does the minute.
    assert history.bad_rates(replace(found.router, term=99)) == {"cats": 0.5}


def test_every_name_is_documented_and_the_page_is_current() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == page(), (
        "python -m fermata.deployments.metrics.reference_page > docs/metrics.md"
    )
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_names_keep_to_prometheus_conventions() -> None:
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert not family.name.endswith(("_ns", "_ms", "_us")), family.name
