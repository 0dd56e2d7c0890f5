"""True classes that clients feed back: read, bounded, learnt and counted."""

import asyncio
import json
from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from test_sneakpeek_live import CLASSES, PEEK, PeekingWorld

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire import parameters as names
from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.frontend.access.tenants import ANYBODY, Tenant
from fermata.deployments.frontend.inputs.feedback import read_truth
from fermata.deployments.frontend.protocol.openapi import document
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.protocol.rest import Rest
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import ms
from fermata.router.links.messages import Truth
from fermata.router.live.snapshot import take_snapshot
from fermata.router.policies.sneakpeek.classes import Classes
from fermata.router.policies.sneakpeek.estimator import Estimator

MODEL = ServedModel(
    "cats",
    TensorSpec("input", "FP32", (2,)),
    ms(50),
    ms(50),
    variants=("small", "large"),
    labels=("no", "yes"),
)


def test_truth_is_read_by_number_or_by_name() -> None:
    told = read_truth(MODEL, "1", {"label": "yes", "answer": 0, "variant": "small"}, 7)
    assert (told.label, told.answer, told.variant, told.tenant) == (1, 0, "small", 7)
    assert read_truth(MODEL, "1", {"label": 1}).answer == -1
    assert read_truth(MODEL, "1", {"label": 0, "variant": "sneakpeek"}).variant == "sneakpeek"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "label is missing"),
        ({"label": 2}, "there are 2, from 0 up"),
        ({"label": -1}, "there are 2"),
        ({"label": True}, "is no class"),
        ({"label": "maybe"}, "use its number or its label"),
        ({"label": 1, "variant": "huge"}, "use one of small, large, sneakpeek"),
        ({"label": 1, "wieght": 5}, "is unknown: send label, answer and variant"),
    ],
)
def test_what_is_no_truth_is_refused(given: JsonObject, said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        read_truth(MODEL, "1", given)


def test_rare_class_is_learnt_from_truths() -> None:
    # A look that is blind: without truths both classes seem to come as often.
    blind = Classes(CLASSES.recall, peek=type(PEEK)(((0.5, 0.5), (0.5, 0.5)), (0.5, 0.5)))
    estimator = Estimator(blind, ())
    rng = np.random.default_rng(5)
    for number in range(4000):
        estimator.on_votes((1, 0) if rng.random() < 0.5 else (0, 1))
        if number % 5 == 0:
            estimator.on_truth(int(rng.random() < 0.05), -1, False, None, 0)
    assert 0.025 < estimator.frequencies.settled[1] < 0.1


def test_truths_of_one_tenant_count_for_a_share_of_the_stream() -> None:
    estimator = Estimator(Classes(CLASSES.recall, peek=PEEK), ())
    for _ in range(200):
        estimator.on_votes((5, 0))
    taken = [estimator.on_truth(1, 0, False, True, 3) for _ in range(1000)]
    assert sum(taken) == 40
    assert estimator.truths.refused == 960
    assert estimator.on_truth(1, 0, False, True, 4)


def test_recall_follows_what_clients_tell() -> None:
    estimator = Estimator(Classes(CLASSES.recall, counts=(50, 50), peek=PEEK, prior="even"), ())
    before = estimator.on_votes((1, 1)).accuracies
    for _ in range(500):
        estimator.on_votes((1, 1))
    for _ in range(100):
        assert estimator.on_truth(0, 1, False, False, 0)
    after = estimator.on_votes((1, 1)).accuracies
    assert after[1] < before[1] - 0.2
    assert after[0] == before[0]


def test_router_counts_short_circuits_and_how_often_they_were_right() -> None:
    world = PeekingWorld()
    world.ask(1, (0, 5))
    world.ask(2, (1, 1))
    world.hear(world.frontend, Truth("cats", 1, "sneakpeek", 1))
    world.hear(world.frontend, Truth("cats", 0, "sneakpeek", 1))
    world.hear(world.frontend, Truth("cats", 9, "sneakpeek", 1))
    world.hear(world.frontend, Truth("dogs", 0))
    looks = take_snapshot(world.router).applications["cats"].looks
    assert looks is not None
    assert (looks.looked, looks.short_circuits) == (2, 1)
    assert (looks.truths, looks.judged, looks.right) == (2, 2, 1)
    assert world.frontend.closed is None


class ToldDriver:
    """Keeps the truths that it is told."""

    def __init__(self) -> None:
        self.truths: list[Truth] = []

    def tell(self, truth: Truth) -> None:
        self.truths.append(truth)

    def check(self, tenant: Tenant, registry: Registry, model: str) -> None:
        tenant.check(registry, model)


def post(app: Starlette, path: str, body: object) -> int:
    """Status of the answer to a POST, with no network in between."""
    said: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [],
    }
    asyncio.run(app(scope, receive, send))
    status: int = said[0]["status"]
    return status


def test_feedback_is_taken_over_http() -> None:
    driver, registry = ToldDriver(), Registry([MODEL])
    service: Any = SimpleNamespace(
        driver=driver,
        registry=registry,
        tenants=SimpleNamespace(find=lambda token: ANYBODY),
        memory=None,
    )
    app = Rest(service, 1 << 20).app()
    assert post(app, "/v2/models/cats/feedback", {"label": "yes", "variant": "large"}) == 200
    assert post(app, "/v2/models/cats/versions/1/feedback", {"label": 0, "answer": 1}) == 200
    assert post(app, "/v2/models/cats/feedback", {"label": "maybe"}) == 400
    assert post(app, "/v2/models/dogs/feedback", {"label": 1}) == 404
    assert [(each.label, each.answer, each.variant) for each in driver.truths] == [
        (1, -1, "large"),
        (0, 1, ""),
    ]
    assert "/v2/models/{model}/feedback" in str(document())


def test_request_may_tell_the_truth_of_an_earlier_one() -> None:
    tensor = pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[2])
    asked = pb.ModelInferRequest(model_name="cats", inputs=[tensor], raw_input_contents=[bytes(8)])
    assert parse_request(asked, Registry([MODEL])).truth is None
    asked.parameters[names.TRUTH].string_param = "yes"
    asked.parameters[names.TRUTH_ANSWER].int64_param = 1
    asked.parameters[names.TRUTH_VARIANT].string_param = "sneakpeek"
    truth = parse_request(asked, Registry([MODEL])).truth
    assert truth is not None
    assert (truth.label, truth.answer, truth.variant) == (1, 1, "sneakpeek")
