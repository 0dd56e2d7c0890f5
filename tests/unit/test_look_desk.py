"""Looks that a backend takes: the same votes as a frontend's, and an answer to each."""

import asyncio
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from router_world import FakeLink

pytest.importorskip("faiss")

from fermata.deployments.backend.execution.segments import Segments
from fermata.deployments.backend.looks.desk import LookDesk
from fermata.deployments.backend.looks.looker import Looker
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.settings import BackendSettings
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.served.inputs import decodes_later
from fermata.deployments.config.served.looks import peeks, placed_looks
from fermata.deployments.frontend.memory.arena import Arena
from fermata.deployments.models.pictures.decoding import decode, fit, write
from fermata.deployments.sneakpeek.building import build_model
from fermata.deployments.sneakpeek.embedding import runs_in_torch, takes_tensors
from fermata.deployments.sneakpeek.look_queue import LookLimits, Votes
from fermata.deployments.sneakpeek.placed_look import PlacedLook
from fermata.deployments.sneakpeek.store import SneakPeekModel, save_model
from fermata.deployments.specs.served_model import ImageSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms, seconds
from fermata.router.links.messages import (
    FrontendAddress,
    Look,
    Looked,
    Message,
    Payload,
    TakesLooks,
)

SIDE = 16
FRONTEND = 2


def pictures(count: int) -> np.ndarray:
    """Dark ones and bright ones in turn, [count, 3, side, side]."""
    rng = np.random.default_rng(3)
    levels = np.where(np.arange(count) % 2, 180, 20)[:, None, None, None]
    return (levels + rng.integers(0, 40, (count, 3, SIDE, SIDE))).astype(np.uint8)


def model() -> SneakPeekModel:
    built = build_model(pictures(60).astype(np.float32), np.arange(60) % 2, dimensions=4)
    return replace(built, dtype="uint8")


def jpeg(level: int) -> bytes:
    out = io.BytesIO()
    rng = np.random.default_rng(level)
    Image.fromarray((level + rng.integers(0, 40, (40, 60, 3))).astype(np.uint8)).save(out, "JPEG")
    return out.getvalue()


def encoded(data: bytes) -> np.ndarray:
    found = np.empty((1,), dtype=object)
    found[0] = data
    return found


# Votes


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_encoded_pictures_get_the_votes_of_a_frontend(dtype: str) -> None:
    spec = ImageSpec(SIDE, SIDE)
    scale = None if dtype == "uint8" else (spec.mean, spec.std)
    look = PlacedLook(replace(model(), scale=scale), spec, (3, SIDE, SIDE), dtype)
    looker = Looker({"cats": look}, "cpu")
    looker.load()
    given = [jpeg(level) for level in (10, 190, 30, 170)]
    made = []
    for each in given:
        made.append(np.empty((3, SIDE, SIDE), dtype))
        write(fit(decode(each, 10**6), spec), spec, made[-1])
    wanted = [tuple(row) for row in look.model.look(made).tolist()]
    assert [row.index(max(row)) for row in wanted] == [0, 1, 0, 1]
    assert looker("cats", [encoded(each) for each in given]) == wanted
    # Arrays beside them, as of pictures that no device decodes.
    mixed = [encoded(given[0]), made[1], encoded(given[2]), made[3]]
    assert looker("cats", mixed) == wanted


def test_broken_picture_gets_no_votes_and_spoils_none() -> None:
    spec = ImageSpec(SIDE, SIDE)
    looker = Looker({"cats": PlacedLook(model(), spec, (3, SIDE, SIDE))}, "cpu")
    good, bad = encoded(jpeg(10)), encoded(b"\xff\xd8 no picture")
    found = looker("cats", [good, bad, good])
    assert found[1] == ()
    assert found[0] == found[2] != ()


def test_looker_knows_what_it_can_look_at() -> None:
    looker = Looker({"cats": PlacedLook(model())}, "cpu")
    assert looker.sees("cats", pictures(1)[0])
    assert not looker.sees("dogs", pictures(1)[0])
    assert not looker.sees("cats", np.zeros((3, 5, 5), np.uint8))
    assert not looker.sees("cats", encoded(jpeg(10)))
    assert not looker.sees("cats", {"first": pictures(1)[0]})


# The desk


class Answers:
    """Links to frontends as the desk needs them."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Message]] = []
        self.taker: Any = None

    def send(self, number: int, message: Message) -> bool:
        self.sent.append((number, message))
        return True

    def take_looks(self, taker: Any) -> None:
        self.taker = taker

    def looked(self) -> dict[int, Votes]:
        found = [message for _, message in self.sent if isinstance(message, Looked)]
        return {each.rid: each.votes for each in found}


def payload(rid: int, sample: np.ndarray) -> Payload:
    return Payload(rid, "UINT8", sample.shape, sample.tobytes())


async def looked_at(
    looks: Sequence[Look], limits: LookLimits | None = None
) -> tuple[Answers, LookDesk]:
    answers = Answers()
    looker = Looker({"cats": PlacedLook(model())}, "cpu")
    made: Any = answers
    desk = LookDesk(looker, Segments(), made, limits or LookLimits())
    await desk.load()
    assert answers.taker is desk
    desk.take(FRONTEND, looks)
    async with asyncio.timeout(10):
        while len(answers.sent) < len(looks):
            await asyncio.sleep(0.001)
    desk.close()
    return answers, desk


def test_every_look_is_answered_where_it_came_from() -> None:
    samples = pictures(6)
    looks = [Look("cats", payload(rid, each), seconds(9)) for rid, each in enumerate(samples)]
    looks += [
        Look("dogs", payload(90, samples[0]), seconds(9)),
        Look("cats", payload(91, samples[0][:, :4]), seconds(9)),
        Look("cats", Payload(92, "UINT8", (3, SIDE, SIDE), b"short"), seconds(9)),
        Look("cats", Payload(93, "UINT8", (3,), b"", "no-such-segment", 0, 3), seconds(9)),
    ]
    answers, desk = asyncio.run(looked_at(looks))
    assert {number for number, _ in answers.sent} == {FRONTEND}
    found = answers.looked()
    wanted = model().look(list(samples))
    assert [found[rid] for rid in range(6)] == [tuple(row) for row in wanted.tolist()]
    assert {rid: found[rid] for rid in (90, 91, 92, 93)} == dict.fromkeys((90, 91, 92, 93), ())
    assert desk.told() == TakesLooks(("cats",))
    took = [each.took_ns for _, each in answers.sent if isinstance(each, Looked) and each.votes]
    assert all(each > 0 for each in took)


def test_looks_beyond_the_bound_are_answered_at_once() -> None:
    looks = [Look("cats", payload(rid, pictures(1)[0]), seconds(9)) for rid in range(8)]
    answers, _ = asyncio.run(looked_at(looks, LookLimits(waiting_max=3)))
    # One is looked at and three wait.
    assert [rid for rid, votes in answers.looked().items() if not votes] == [4, 5, 6, 7]


def test_input_is_read_in_shared_memory() -> None:
    async def play() -> dict[int, Votes]:
        arena = Arena(1 << 16)
        sample = pictures(2)[1]
        placed = arena.place(5, "UINT8", sample.shape, sample.tobytes())
        assert placed.segment
        answers, _ = await looked_at([Look("cats", placed, seconds(9))])
        arena.close()
        return answers.looked()

    votes = asyncio.run(play())[5]
    assert votes == tuple(model().look([pictures(2)[1]])[0].tolist())


# Links


async def nowhere() -> str:
    raise AssertionError("nobody asks")


class LinkedBackend:
    """A backend with a link to one frontend."""

    def __init__(self, protocol: int) -> None:
        self.frontends = BackendProcess(BackendSettings(1), {}, nowhere).frontends
        self.link = FakeLink("frontend", FRONTEND)
        self.link.peer = _spoken(self.link.peer, protocol)
        self.frontends.add(FrontendAddress(FRONTEND, "there:1", ""))
        self.frontends.peers[FRONTEND].link = self.link  # type: ignore[assignment]
        self.taken: list[Look] = []

    def told(self) -> TakesLooks:
        return TakesLooks(("cats",))

    def take(self, frontend: int, looks: Sequence[Look]) -> None:
        assert frontend == FRONTEND
        self.taken += looks


def _spoken(peer: Any, protocol: int) -> Any:
    import msgspec

    return msgspec.structs.replace(peer, protocol=protocol)


@pytest.mark.parametrize(("protocol", "told"), [(9, 1), (8, 0)])
def test_frontends_of_an_earlier_version_are_told_nothing(protocol: int, told: int) -> None:
    backend = LinkedBackend(protocol)
    backend.frontends.take_looks(backend)
    assert len(backend.link.take(TakesLooks)) == told


def test_looks_pass_beside_payloads_where_they_are_taken() -> None:
    look = Look("cats", payload(1, pictures(1)[0]), ms(5))
    backend = LinkedBackend(9)
    backend.frontends.events = _Payloads()  # type: ignore[assignment]
    link: Any = backend.link
    backend.frontends.take_looks(backend)
    backend.frontends.on_messages(link, [payload(3, pictures(1)[0]), look])
    assert backend.taken == [look]
    assert [each.rid for each in backend.frontends.events.found] == [3]  # type: ignore[attr-defined]
    assert backend.link.closed is None
    backend.frontends.looks = None
    backend.frontends.on_messages(link, [look])
    assert backend.link.closed is not None


class _Payloads:
    def __init__(self) -> None:
        self.found: list[Payload] = []

    def on_payloads(self, payloads: list[Payload]) -> None:
        self.found += payloads


# The configuration


def config(tmp_path: Path, embedding: str = "raw", **changes: Any) -> DeploymentConfig:
    path = tmp_path / "look.npz"
    save_model(path, replace(model(), embedding=embedding))
    classes = {"sneakpeek": str(path)}
    if "look_on" in changes:
        classes["look_on"] = changes.pop("look_on")
    row = {
        "name": "cats",
        "slo_ms": 200,
        "classes": classes,
        "input": {"dtype": "UINT8", "shape": [3, SIDE, SIDE], "image": True},
        "variants": [{"name": "own", "model": "own:load"}],
    }
    return read_config({"applications": [row], **changes})


CUDA = {"device": "cuda"}


@pytest.mark.parametrize(
    ("embedding", "given", "there"),
    [
        ("raw", {}, False),
        ("imagenet:lite0", {}, False),
        ("imagenet:lite0", {"backend": CUDA}, True),
        ("raw", {"backend": CUDA}, False),
        ("imagenet:lite0", {"backend": {**CUDA, "swap": True}}, False),
        ("imagenet:lite0", {"backend": CUDA, "look_on": "frontend"}, False),
        ("raw", {"look_on": "backend"}, True),
        ("imagenet:lite0", {"backends": [{"count": 1, **CUDA}, {"count": 1}]}, True),
    ],
)
def test_looks_are_taken_where_the_file_says(
    tmp_path: Path, embedding: str, given: dict[str, Any], there: bool
) -> None:
    read = config(tmp_path, embedding, **given)
    assert peeks(read)["cats"].on_backends is there
    assert list(placed_looks(read)) == (["cats"] if there else [])


def test_pictures_stay_encoded_where_backends_decode_and_look(tmp_path: Path) -> None:
    read = config(tmp_path, "imagenet:lite0", backend=CUDA)
    assert decodes_later(read, read.served[0])
    look = placed_looks(read)["cats"]
    assert look.picture == ImageSpec(SIDE, SIDE)
    assert (look.shape, look.dtype, look.takes_pixels) == ((3, SIDE, SIDE), "uint8", True)
    here = config(tmp_path, "imagenet:lite0", backend=CUDA, look_on="frontend")
    assert not decodes_later(here, here.served[0])


def test_place_of_looks_is_one_of_three(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="look_on"):
        config(tmp_path, look_on="gpu")


def test_networks_in_torch_are_for_a_gpu() -> None:
    names = ("imagenet:lite0@64/5", "text:vectors", "raw", "my_module:embed")
    assert [runs_in_torch(each) for each in names] == [True, True, False, False]
    assert [takes_tensors(each) for each in names] == [True, False, False, False]
