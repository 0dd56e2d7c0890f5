"""A backend takes looks from its start on, and a spare once it has taken over."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("faiss")

from fermata.deployments.backend.host import BackendHost, HostOptions
from fermata.deployments.backend.looks.desk import LookDesk
from fermata.deployments.backend.seats import Holder, Seat
from fermata.deployments.sneakpeek.building import build_model
from fermata.deployments.sneakpeek.placed_look import PlacedLook
from fermata.deployments.specs.backend import ModelSpec, StoreOptions
from fermata.foundation.errors import ConfigError
from fermata.profiles.profile import Profile
from fermata.router.links.session import LinkError

SOON_S = 20.0


async def nowhere() -> str:
    raise LinkError("there is no router")


def looks() -> dict[str, PlacedLook]:
    labels = np.arange(40) % 2
    samples = (labels[:, None] * np.ones((1, 3))).astype(np.float32)
    return {"cats": PlacedLook(build_model(samples, labels, dimensions=0))}


def host(read: Callable[[], Mapping[str, PlacedLook]], seat: Seat | None = None) -> BackendHost:
    options = HostOptions(
        number=8,
        store=StoreOptions(
            (ModelSpec("v", "emulated", 4, table_ns=(1, 2, 3, 4)),), device="emulated"
        ),
        resolve=nowhere,
        standby=None,
        costs_of=lambda profiles: (),
        profiles={"v": Profile("v", linear_ns=(1, 1))},
        find_seat=lambda device: seat,
        looks=read,
    )
    return BackendHost(lambda: options)


def taker(made: BackendHost) -> object:
    return made.process.frontends.looks


def test_looks_are_taken_from_the_start_on() -> None:
    async def play() -> None:
        made = host(looks)
        async with asyncio.timeout(SOON_S):
            await made.starting
        assert isinstance(taker(made), LookDesk)
        assert taker(made) is made.looks
        await made.process.stop()
        assert made.looks is not None
        made.looks.close()

    asyncio.run(play())


def test_backend_without_looks_has_no_thread_for_them() -> None:
    async def play() -> None:
        made = host(dict)
        async with asyncio.timeout(SOON_S):
            await made.starting
        assert taker(made) is made.looks is None
        await made.process.stop()

    asyncio.run(play())


def test_start_dies_of_a_look_that_cannot_be_taken() -> None:
    def broken() -> dict[str, PlacedLook]:
        raise ConfigError("look.npz is damaged")

    async def play() -> None:
        made = host(broken)
        with pytest.raises(ConfigError, match=r"look\.npz is damaged"):
            async with asyncio.timeout(SOON_S):
                await made.starting

    asyncio.run(play())


def test_spare_takes_looks_once_it_serves(tmp_path: Path) -> None:
    async def play() -> None:
        before = Seat(tmp_path / "gpu-0")
        assert before.serving.try_take()
        before.note(Holder(7, 2**22 + 1, "", False))
        made = host(looks, Seat(tmp_path / "gpu-0"))
        async with asyncio.timeout(SOON_S):
            await made.starting
            assert made.process.first == 7
            assert taker(made) is None
            before.serving.release()
            while taker(made) is None:
                await asyncio.sleep(0.01)
        assert made.process.first is None
        await made.process.stop()
        assert made.looks is not None
        made.looks.close()

    asyncio.run(play())
