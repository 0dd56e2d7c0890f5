"""The live parts of SneakPeek without Ray: looks, messages, answers, swaps."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from router_world import FakeLink, World, rid

from fermata.clients.wire import parameters as names
from fermata.clients.wire.tensors import DTYPES, RawTensor
from fermata.deployments.backend.execution.runners.runner import PlainRunner, Runner
from fermata.deployments.backend.models.swapping import SwappingRunner, SwapSpace
from fermata.deployments.config.deployment import load_config, read_config
from fermata.deployments.config.resolve import router_config
from fermata.deployments.config.served.looks import peeks
from fermata.deployments.frontend.inputs.request_input import RequestInput, pack
from fermata.deployments.frontend.protocol.replies import response_of
from fermata.deployments.frontend.requests.looks.look_answers import LookAnswers
from fermata.deployments.frontend.requests.looks.peeker import Peeker
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.frontend.requests.pending_request import RequestTerms, SendAnswer
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.sneakpeek.building import build_model
from fermata.deployments.sneakpeek.store import save_model
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.profiles.profile import from_table_ms
from fermata.router.assembly import RouterConfig
from fermata.router.links.messages import (
    Estimated,
    Evidence,
    Ready,
    Result,
    Run,
    ShortCircuit,
    Submit,
)
from fermata.router.live.driver import LiveRouter
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.sneakpeek.classes import Classes, Peek

PEEK = Peek(((0.9, 0.1), (0.1, 0.9)), (0.9, 0.9))
CLASSES = Classes(((0.95, 0.3), (0.97, 0.9)), peek=PEEK, prior="even")


class PeekingWorld(World):
    """A router with two variants of one application, swapped in on one backend."""

    def __init__(self) -> None:
        self.now_ns = ms(1000)
        self.soon = []
        self.wakes = []
        variants = tuple(
            VariantSpec(name, tuple(ms(run * size) for size in range(1, 9)), swap_in_ns=ms(3))
            for name, run in (("small", 2), ("large", 9))
        )
        application = ApplicationSpec("cats", ms(100), variants, classes=CLASSES)
        config = RouterConfig((application,), "sneakpeek", {"window_ms": 10}, lead_ns=0, swap=True)
        self.router = LiveRouter(config, 3, lambda: self.now_ns, self.soon.append, self._wake)
        self.frontend = self.link("frontend", 2)
        self.backend = self.link("backend", 5)
        self.hear(self.backend, Ready("cpu", ("small", "large")))

    def ask(self, counter: int, votes: Sequence[float]) -> None:
        self.hear(self.frontend, Submit(rid(counter), "cats", ms(100), ms(200)))
        self.hear(self.frontend, Evidence(rid(counter), votes=tuple(votes)))
        self.advance(ms(11))


def test_unsure_look_goes_to_a_backend_with_its_estimate() -> None:
    world = PeekingWorld()
    world.ask(1, (1, 1))
    assert [run.variant for run in world.backend.take(Run)] == ["large"]
    assert [each.estimate for each in world.frontend.take(Estimated)] == [pytest.approx(0.935)]


def test_sure_look_is_answer_enough() -> None:
    world = PeekingWorld()
    world.ask(1, (0, 5))
    assert world.backend.take(Run) == []
    (answer,) = world.frontend.take(ShortCircuit)
    assert (answer.rid, answer.label) == (rid(1), 1)
    assert answer.estimate == pytest.approx(answer.classes[1])
    assert world.application()["good"] == 1


def test_evidence_of_another_shape_or_too_late_is_ignored() -> None:
    world = PeekingWorld()
    world.ask(1, (1, 1, 1))
    assert len(world.backend.take(Run)) == 1
    assert world.frontend.take(Estimated) == []
    world.hear(world.frontend, Evidence(rid(1), votes=(5, 0)))
    assert isinstance(world.frontend, FakeLink)
    assert world.frontend.closed is None


def test_backend_that_swaps_is_taken_to_hold_nothing_at_first() -> None:
    world = PeekingWorld()
    state = world.router.engine.ranks[0].backends[5]
    assert state.resident == frozenset()
    world.ask(1, (1, 1))
    (run,) = world.backend.take(Run)
    assert run.plan_ns == ms(9 + 3)
    # What it can run, announced again, says nothing about what it holds.
    world.hear(world.backend, Ready("cpu", ("small", "large")))
    assert state.resident == frozenset((1,))


# The frontend


def test_table_answers_a_short_circuit_with_class_probabilities() -> None:
    table = RequestTable(7)
    table.on_router_up(0, 1)
    given = table.admit(0, RequestTerms("cats", ms(50), ms(50), 10))
    assert isinstance(given, int)
    table.on_short_circuit(ms(5), ShortCircuit(given, 1, 0.75, (0.25, 0.75)))
    (answer,) = [each for each in table.take_effects() if isinstance(each, SendAnswer)]
    assert isinstance(answer.outcome, Result)
    assert answer.outcome.short_circuit
    name, dtype, shape, data = answer.outcome.tensors[0]
    assert (name, dtype, shape) == ("output", "FP32", (2,))
    assert np.frombuffer(data, np.float32).tolist() == [0.25, 0.75]


def test_answers_carry_variant_estimate_and_short_circuit() -> None:
    table = RequestTable(7)
    table.on_router_up(0, 1)
    given = table.admit(0, RequestTerms("cats", ms(50), ms(50), 10))
    assert isinstance(given, int)
    table.on_estimated(Estimated(given, 0.875))
    table.on_result(ms(9), 1, Result(given, "large", 1, 0, ms(2)))
    (answer,) = [each for each in table.take_effects() if isinstance(each, SendAnswer)]
    assert isinstance(answer.outcome, Result)
    model = ServedModel("cats", TensorSpec("input", "FP32", (2,)), ms(50), ms(50))
    raw = RawTensor("input", "FP32", (2,), bytes(8))
    own = RequestInput(model, raw, encoded=False, batched=False)
    asked = ParsedRequest("1", "", RequestTerms("cats", 1, 1, 1), own)
    said = response_of(asked, answer.outcome, 0).parameters
    assert said[names.VARIANT].string_param == "large"
    assert said[names.ESTIMATE].double_param == 0.875
    assert not said[names.SHORT_CIRCUIT].bool_param
    plain = response_of(asked, Result(given, "large", 1, 0, 0), 0).parameters
    assert names.ESTIMATE not in plain


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 2
    return (labels[:, None] * np.ones((1, 3))).astype(np.float32), labels


def test_inputs_are_looked_at_together_off_the_loop() -> None:
    async def look() -> tuple[list[Evidence], Peeker]:
        said: list[Evidence] = []
        with ThreadPoolExecutor(1) as pool:
            peeker = Peeker({"cats": build_model(*samples(40), dimensions=0)}, pool, said.append)
            for number in range(5):
                peeker.take(number, "cats", np.full(3, number % 2, np.float32))
            peeker.take(9, "dogs", np.zeros(3, np.float32))
            peeker.take(10, "cats", np.zeros(4, np.float32))
            while len(said) < 5:
                await asyncio.sleep(0)
        return said, peeker

    said, peeker = asyncio.run(look())
    assert sorted(each.rid for each in said) == [0, 1, 2, 3, 4]
    assert all(each.votes == ((5, 0) if each.rid % 2 == 0 else (0, 5)) for each in said)
    assert peeker.peeked == 5
    assert peeker.cpu_ns > 0


# The backend


def test_one_model_is_held_at_a_time() -> None:
    loaded: list[str] = []

    def load(spec: ModelSpec) -> Runner:
        loaded.append(spec.name)
        factor = 2 if spec.name == "double" else 3
        return PlainRunner(lambda batch: factor * batch, 4)

    space = SwapSpace(load)
    double = SwappingRunner(ModelSpec("double", "x"), space)
    triple = SwappingRunner(ModelSpec("triple", "x"), space)
    item = np.ones(2, np.float32)
    assert double.run(double.stage([item])).tolist() == [[2, 2]]
    assert double.run(double.stage([item])).tolist() == [[2, 2]]
    assert triple.run(triple.stage([item])).tolist() == [[3, 3]]
    assert loaded == ["double", "triple", "double", "triple"]
    double.close()
    assert space.resident == "triple"
    triple.close()
    assert space.runner is None


# The configuration


def test_sample_configuration_is_complete() -> None:
    config = load_config(Path(__file__).parents[2] / "deployments/sneakpeek.yaml")
    run_ms, recall = (1.0, 1.5), (0.9,) * 10
    profiles = {
        each.name: from_table_ms(each.name, run_ms, accuracy=0.9, recall=recall)
        for each in config.applications[0].variants
    }
    served = router_config(config, profiles)
    assert served.swap
    assert all(variant.swap_in_ns > 0 for variant in served.applications[0].variants)
    classes = served.applications[0].classes
    assert classes is not None
    assert classes.peek is not None
    assert peeks(config)["digits"].peek == classes.peek


def test_classes_without_recalls_are_refused() -> None:
    config = read_config(
        {
            "applications": [
                {
                    "name": "cats",
                    "slo_ms": 50,
                    "classes": {},
                    "variants": [{"name": "v", "latency_ms": [5], "accuracy": 0.9}],
                }
            ],
            "router": {"policy": "sneakpeek"},
        }
    )
    with pytest.raises(ConfigError, match="'v' of cats has no recall by class"):
        router_config(config, {"v": from_table_ms("v", [5.0], accuracy=0.9)})


def digits_config(**changes: object) -> dict[str, object]:
    row = {"name": "digits", "slo_ms": 200, "classes": {"sneakpeek": "digits"}, **changes}
    row.setdefault("variants", [{"name": "nano", "model": "digits:nano"}])
    row.setdefault("input", {"name": "input", "dtype": "FP32", "shape": [64]})
    return row


def test_every_version_of_an_application_is_looked_at() -> None:
    second = digits_config(version=2, variants=[{"name": "xl", "model": "digits:xl"}])
    config = read_config({"applications": [digits_config(version=1), second]})
    assert sorted(peeks(config)) == ["digits@1", "digits@2"]


def test_look_of_another_shape_is_refused_at_the_start() -> None:
    row = digits_config(input={"name": "input", "dtype": "FP32", "shape": [3, 32, 32]})
    row["variants"] = [{"name": "own", "model": "own:load"}]
    with pytest.raises(ConfigError, match=r"samples of \[.*\]: requests of digits are \[3, 32, 32"):
        peeks(read_config({"applications": [row]}))


def fused_config(*shapes: list[int]) -> dict[str, object]:
    names = ("frame", "motion")
    row = digits_config(
        inputs=[
            {"name": name, "dtype": "FP32", "shape": shape}
            for name, shape in zip(names, shapes, strict=True)
        ],
        variants=[{"name": "fused", "model": "own:load"}],
    )
    del row["input"]
    return row


def test_first_of_two_inputs_is_looked_at() -> None:
    """Models of several inputs were accepted or refused by the shape of none of them, and never
    looked at."""
    model = peeks(read_config({"applications": [fused_config([64], [7])]}))["digits"]
    assert model.sees((64,))
    with pytest.raises(ConfigError, match=r"requests of digits are \[7\]"):
        peeks(read_config({"applications": [fused_config([7], [64])]}))


def test_backends_look_at_single_inputs() -> None:
    fused = fused_config([64], [7])
    given = {**fused, "classes": {**fused["classes"], "look_on": "backend"}}
    with pytest.raises(ConfigError, match="one input, not of 2: use look_on: frontend"):
        peeks(read_config({"applications": [given]}))
    assert not peeks(read_config({"applications": [fused]}))["digits"].on_backends


@pytest.mark.parametrize("rows", [0, 1])
def test_look_sees_the_first_input_as_it_was_sent(rows: int) -> None:
    served = ServedModel(
        "fall",
        TensorSpec("frame", "FP32", (2,)),
        ms(100),
        ms(100),
        more_inputs=(TensorSpec("motion", "FP32", (3,)),),
    )
    lead = (1,) * rows
    first = RawTensor("frame", "FP32", (*lead, 2), np.float32([1, 2]).tobytes())
    second = RawTensor("motion", "FP32", (*lead, 3), np.float32([3, 4, 5]).tobytes())
    for tensors in ((first, second), (second, first)):
        given = RequestInput(served, pack(tensors), False, bool(rows), tensors=tensors)
        dtype, shape, data = given.first
        assert (dtype, shape) == ("FP32", (2,))
        assert np.frombuffer(data, np.float32).tolist() == [1, 2]
    alone = RequestInput(served, first, False, bool(rows))
    assert alone.first[:2] == ("FP32", (2,))


def pictures_model(tmp_path: Path, side: int) -> Path:
    labels = np.arange(40) % 2
    samples = np.broadcast_to(200.0 * labels[:, None, None, None], (40, 3, side, side))
    path = tmp_path / f"{side}.npz"
    save_model(path, build_model(samples.astype(np.float32), labels, dimensions=2))
    return path


def test_frames_of_any_size_are_looked_at(tmp_path: Path) -> None:
    sized = {"dtype": "UINT8", "shape": [3, 64, 64], "image": True, "fit": "whole", "sized": True}
    row = digits_config(input=sized, classes={"sneakpeek": str(pictures_model(tmp_path, 8))})
    row["variants"] = [{"name": "own", "model": "own:load", "input_size": 64}]
    model = peeks(read_config({"applications": [row]}))["digits"]
    for shape in ((30, 40, 3), (8, 8, 3), (64, 64, 3)):
        assert model.sees(shape)
        frame = np.full(shape, 200, np.uint8)
        assert model.look([frame, 0 * frame]).argmax(axis=1).tolist() == [1, 0]
    assert not model.sees((64,))
    row["classes"] = {"sneakpeek": "digits"}
    with pytest.raises(ConfigError, match=r"need a model of square ones"):
        peeks(read_config({"applications": [row]}))


# Answers in the model's own form


Tensors = tuple[tuple[str, str, tuple[int, ...], bytes], ...]


def short_circuited(tensors: Tensors) -> tuple[str, str, tuple[int, ...], list[float]]:
    """The answer of a look after a backend has answered with these."""
    table = RequestTable(7)
    table.looks = LookAnswers({"cats": 2})
    table.on_router_up(0, 1)
    ran, looked_at = (table.admit(0, RequestTerms("cats", ms(50), ms(50), 10)) for _ in range(2))
    assert isinstance(ran, int)
    assert isinstance(looked_at, int)
    table.on_estimated(Estimated(ran, 0.875))
    table.on_result(ms(9), 1, Result(ran, "large", 1, 0, ms(2), tensors))
    table.take_effects()
    table.on_short_circuit(ms(10), ShortCircuit(looked_at, 1, 0.75, (0.25, 0.75)))
    (answer,) = [each for each in table.take_effects() if isinstance(each, SendAnswer)]
    assert isinstance(answer.outcome, Result)
    ((name, dtype, shape, data),) = answer.outcome.tensors
    return name, dtype, shape, np.frombuffer(data, DTYPES[dtype]).tolist()


def tensor(name: str, dtype: str, shape: tuple[int, ...], *values: float) -> Tensors:
    return ((name, dtype, shape, np.array(values, DTYPES[dtype]).tobytes()),)


def test_look_answers_as_the_model_does() -> None:
    given = short_circuited(tensor("scores", "FP64", (1, 2), 0.9, 0.1))
    assert given == ("scores", "FP64", (1, 2), [0.25, 0.75])
    name, _, _, logits = short_circuited(tensor("logits", "FP32", (2,), -3.0, 4.5))
    assert name == "logits"
    assert np.exp(logits) == pytest.approx([0.25, 0.75])
    assert short_circuited(tensor("class", "INT64", (1,), 0)) == ("class", "INT64", (1,), [1])


def test_look_is_no_answer_for_outputs_that_it_does_not_have() -> None:
    looks = LookAnswers({"cats": 2})
    both = tensor("logits", "FP32", (2,), 1, 2) + tensor("features", "FP32", (3,), 1, 2, 3)
    looks.learn("cats", both)
    assert looks.takes("cats", ["logits"])
    assert not looks.takes("cats", [])
    assert not looks.takes("cats", ["logits", "features"])
    looks.learn("cats", tensor("features", "FP32", (3,), 1, 2, 3))
    assert not looks.takes("cats", [])


def test_request_that_no_look_may_answer_is_estimated_all_the_same() -> None:
    world = PeekingWorld()
    world.hear(world.frontend, Submit(rid(1), "cats", ms(100), ms(200)))
    world.hear(world.frontend, Evidence(rid(1), votes=(0, 5), answers=False))
    world.advance(ms(11))
    assert [run.variant for run in world.backend.take(Run)] == ["large"]
    assert world.frontend.take(ShortCircuit) == []
