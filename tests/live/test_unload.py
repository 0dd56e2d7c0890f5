"""A backend that is told to unload: what it has begun ends well, and it can be loaded again."""

import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvloop")
from test_links import inline, run, served, until

from fermata.deployments.backend.execution.runners.runner import PlainRunner, Runner
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms, seconds
from fermata.router.links.messages import Place
from fermata.router.links.unavailability import UNLOADED, Unavailability, UnavailableCause

pytestmark = pytest.mark.live


class Gate:
    """A model that runs for as long as the test keeps it closed."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.opened = threading.Event()
        self.closed = False

    def __call__(self, batch: Any) -> Any:
        self.begun.set()
        assert self.opened.wait(20)
        assert not self.closed, "closed while it ran"
        return np.ones((len(batch), 1), np.float32)

    def close(self) -> None:
        self.closed = True


class OneMore:
    """Fails the first time it is asked, and then has a model."""

    def __init__(self) -> None:
        self.asked = 0
        self.returned: list[str] = []

    def load(self, variant: str) -> Runner:
        self.asked += 1
        if self.asked == 1:
            raise ConfigError("the disk is full")
        return PlainRunner(lambda batch: np.zeros((len(batch), 1), np.float32), 40)

    def release(self, variant: str) -> None:
        self.returned.append(variant)


def test_batches_under_way_end_before_their_model_goes() -> None:
    async def test() -> None:
        gate, store = Gate(), OneMore()
        async with served(1, inline, PlainRunner(gate, 40), store) as (router, frontend, _, _):
            link = frontend.to_router.link
            assert link is not None
            frontend.submit(seconds(20))
            await until(gate.begun.is_set)
            link.send(Place("app", False))
            await until(lambda: router.fleet.availability.unavailable == {"app": UNLOADED})
            # Long enough for the backend to have heard of it.
            await until(lambda: router.fleet.availability.held[0] == frozenset())
            assert not gate.closed
            gate.opened.set()
            await frontend.all_ended()
            (result,) = frontend.results()
            assert result.error == ""
            await until(lambda: store.returned == ["v"])
            assert gate.closed

            link.send(Place("app", True))
            failed = Unavailability(UnavailableCause.LOAD_FAILED, "the disk is full")
            await until(lambda: router.fleet.availability.unavailable == {"app": failed})
            link.send(Place("app", True))
            await until(lambda: not router.fleet.availability.unavailable)
            frontend.submit(ms(5000))
            await frontend.all_ended()
            assert [each.error for each in frontend.results()] == ["", ""]

    run(test)
