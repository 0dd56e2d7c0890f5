"""A pipeline whose stages are called by whatever function a test names."""

from collections.abc import Awaitable, Callable
from typing import Any

from query_requests_world import World, application

from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.specs.registry import Registry

Function = Callable[[Any, Any], Awaitable[Any]]
NOW: dict[str, Function] = {}
"""The function of the pipeline in this test."""


async def run(inputs: Any, stage: Any) -> Any:
    return await NOW["run"](inputs, stage)


def not_async(inputs: Any, stage: Any) -> None: ...


def pipeline(**more: object) -> dict[str, object]:
    stages = [{"application": "first"}, {"application": "each"}]
    return {"name": "own", "slo_ms": 100, "function": f"{__name__}:run", "stages": stages, **more}


def known(**more: object) -> Registry:
    applications = [application("first", 2), application("each", 1)]
    return registry(read_config({"applications": applications, "pipelines": [pipeline(**more)]}))


def opened(models: Registry, function: Function, **more: Any) -> World:
    """A query has come, its function has run as far as it could."""
    NOW["run"] = function
    world = World(models, **more)
    assert world.open("own") == 1
    world.settle()
    return world
