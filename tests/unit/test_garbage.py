"""The collector is kept away from what a backend has imported, not from its models."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from fermata.deployments.backend.execution.runners.runner import innermost
from tests.unit.test_looking_host import host


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_a_backend_is_not_held_up_by_what_it_has_imported() -> None:
    async def play() -> None:
        made = host(dict)
        await made.starting
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < gc.get_freeze_count() / 10
        await made.process.stop()

    asyncio.run(play())


def test_models_are_left_to_the_collector() -> None:
    """Exported networks are in cycles: one that is unloaded would keep its memory for ever."""

    async def play() -> None:
        made = host(dict)
        await made.starting
        (runner,) = made.process.variants.runners.values()
        held = innermost(runner)
        assert any(each is held for each in gc.get_objects())
        await made.process.stop()

    asyncio.run(play())
