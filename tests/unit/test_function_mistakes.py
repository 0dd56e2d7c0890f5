"""Mistakes of functions that call stages: each is told in one line, and holds up nobody."""

import asyncio
from typing import Any

import numpy as np
import pytest
from function_world import Function, known, opened
from query_requests_world import World

from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.specs.registry import Registry
from fermata.foundation.errors import ConfigError

WORLD = "function_world"


@pytest.fixture(scope="module")
def models() -> Registry:
    return known()


async def raising(inputs: Any, stage: Any) -> Any:
    raise ValueError("spilt\n milk")


async def exiting(inputs: Any, stage: Any) -> Any:
    raise SystemExit(3)


async def cancelling(inputs: Any, stage: Any) -> Any:
    raise asyncio.CancelledError


async def lost_way(inputs: Any, stage: Any) -> Any:
    await stage("second")


async def misfit(inputs: Any, stage: Any) -> Any:
    await stage("each", np.zeros(7, np.float32))


async def odd(inputs: Any, stage: Any) -> Any:
    return {"found": [1, {2, 3}]}


async def endless(inputs: Any, stage: Any) -> Any:
    found: list[Any] = []
    found.append(found)
    return found


async def greedy(inputs: Any, stage: Any) -> Any:
    await asyncio.gather(*[stage("each", [1.0]) for _ in range(1025)])


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (raising, "ValueError: spilt milk"),
        (exiting, "SystemExit: 3"),
        (cancelling, "it was cancelled by nobody but itself"),
        (lost_way, "LookupError: stage 'second' is unknown; one of first, each"),
        (misfit, "ValueError: the input of stage 'each': "),
        (odd, "TypeError: the answer['found'][1] is a set; return numbers, texts, lists, "),
        (endless, "RecursionError: "),
        (greedy, "RuntimeError: it makes more than 1024 calls"),
    ],
)
def test_mistakes_are_told_in_one_line(models: Registry, function: Function, told: str) -> None:
    world = opened(models, function)
    refusal = world.refusal()
    assert (refusal.status, refusal.reason) == ("INTERNAL", "failed")
    assert refusal.message.startswith(f"failed: function {WORLD}:run: {told}")
    assert "\n" not in refusal.message
    assert (world.parts, world.queries.queries) == ({}, {})


def test_a_function_that_holds_all_of_its_threads_is_refused(models: Registry) -> None:
    world = World(models, held={f"{WORLD}:run"})
    refusal = world.open("own")
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith(f"failed: function {WORLD}:run holds all of its threads")
    assert world.queries.queries == {}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"function": "nowhere"}, "function='nowhere' must be module:function"),
        ({"function": f"{WORLD}:gone"}, f"function='{WORLD}:gone' cannot be imported"),
        ({"function": f"{WORLD}:NOW"}, f"function='{WORLD}:NOW' is no function"),
        ({"function": f"{WORLD}:not_async"}, "must be an async function"),
        ({"partial": True}, "partial must be absent"),
        (
            {"stages": [{"application": "first"}, {"application": "each", "after": "first"}]},
            "stage 'each': after must be absent where a function calls stages",
        ),
        (
            {"stages": [{"application": "first", "classes": 3}]},
            "stage 'first': classes must be absent",
        ),
    ],
)
def test_mistakes_in_the_file_are_refused_at_the_start(more: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("(", ".").replace("[", ".")):
        known(**more)
