"""Shape buckets: names, costs and batches of their own, padding with a mask, answers cut back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fermata.applications.reader import bucketed, router_names
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire import parameters
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import add_input, from_array
from fermata.deployments.backend.execution.runners.named import NamedRunner
from fermata.deployments.backend.execution.runners.padding import PaddingRunner, find_cuts
from fermata.deployments.backend.execution.runners.runner import PlainRunner
from fermata.deployments.backend.execution.tensors import InputError
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.policies import policies, with_policies
from fermata.deployments.config.resolve import known_profiles, model_specs, router_config
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.frontend.requests.parsed_request import ParsedRequest
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.registry import UnloadedModelError
from fermata.deployments.specs.served_model import TensorSpec
from fermata.foundation.errors import ConfigError
from fermata.profiles.profile import from_table_ms, linear, narrowed
from fermata.router.links.unavailability import Unavailability, UnavailableCause
from fermata.simulator.run import simulate
from fermata.simulator.scenario.scenario import read_scenario

INPUTS = [
    {"name": "ids", "dtype": "INT64", "shape": [-1]},
    {"name": "mask", "dtype": "INT64", "shape": [-1]},
]
SHAPES = {"buckets": [32, 128, 512], "mask": "mask", "tokens_max": 4096}
VARIANT = {"name": "base", "alpha_ms": 1.0, "beta_ms": 2.0, "batch_size_max": 64}
BERT = {
    "name": "bert",
    "slo_ms": 500,
    "inputs": INPUTS,
    "shapes": SHAPES,
    "variants": [VARIANT],
}


def config(**changed: Any) -> DeploymentConfig:
    given = {**BERT, **changed}
    return read_config({"applications": [each for each in [given] if each]})


# Files


def test_each_bucket_is_an_application_of_the_router() -> None:
    known = config(fair_share=3.0)
    routed = router_config(known, known_profiles(known)).applications
    assert [each.name for each in routed] == ["bert[32]", "bert[128]", "bert[512]"]
    assert [each.variants[0].name for each in routed] == ["base[32]", "base[128]", "base[512]"]
    # The token budget, and `batch_size_max`, bound the rows.
    assert [len(each.variants[0].p50_ns) for each in routed] == [64, 32, 8]
    # What every batch takes stays; what a row takes shrinks with its size.
    assert [each.variants[0].p50_ns[0] for each in routed] == [2_062_500, 2_250_000, 3_000_000]
    assert sum(each.fair_share for each in routed) == pytest.approx(3.0)


def test_versions_and_buckets_have_names_of_their_own() -> None:
    second = {**BERT, "version": 2, "variants": [{**VARIANT, "name": "large"}]}
    known = read_config({"applications": [BERT, second]})
    names = router_names(bucketed(known.applications))
    assert names[:2] == ["bert@1[32]", "bert@1[128]"]
    assert names[3:5] == ["bert@2[32]", "bert@2[128]"]
    found = registry(known)
    model, version = found.find("bert")
    assert model.applications(version) == tuple(names[3:])


def test_policies_of_buckets_are_those_of_their_application() -> None:
    known = config(policy="eager")
    told = policies(known)
    assert set(told["applications"]) == {"bert[32]", "bert[128]", "bert[512]"}
    assert with_policies(known, told).applications == known.applications


def test_a_configuration_with_buckets_is_written_as_it_was_read() -> None:
    known = config()
    again = read_config(known.model_dump())
    assert again.applications == known.applications
    assert again.served == known.served


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"buckets": []}, "must hold at least one size"),
        ({"buckets": [32, 32]}, "must rise from one to the next"),
        ({"buckets": [128, 32]}, "must rise from one to the next"),
        ({"buckets": [0]}, "must be a whole number of at least 1"),
        ({"buckets": [32, 512], "tokens_max": 511}, "must be at least 512"),
        ({"buckets": [32], "mask": "mask", "pad": False}, "goes with pad: true only"),
        ({"buckets": [32], "sizes": [33]}, "is beyond 32, the largest bucket"),
        ({"bucket": [32]}, "bucket"),
    ],
)
def test_buckets_without_a_meaning_are_refused_in_one_line(shapes: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(shapes=shapes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"inputs": [{"name": "x", "shape": [4]}], "shapes": {"buckets": [8]}}, "give -1"),
        ({"shapes": {"buckets": [8], "mask": "other"}}, "mask='other' is no input that varies"),
        (
            {
                "inputs": [{"name": "x", "dtype": "BYTES", "shape": [-1]}],
                "shapes": {"buckets": [8]},
            },
            "BYTES inputs cannot be padded",
        ),
    ],
)
def test_buckets_that_do_not_fit_the_inputs_are_refused(changed: Any, said: str) -> None:
    known = config(**changed)
    with pytest.raises(ConfigError, match=said):
        model_specs(known, known_profiles(known))


@pytest.mark.parametrize("key", ["sequences", "state", "classes"])
def test_buckets_go_without_what_spans_them(key: str) -> None:
    given = {"sequences": True, "state": {"ids": "out"}, "classes": {"prior": [0.5, 0.5]}}
    with pytest.raises(ConfigError, match=f"{key}='bert': goes without shapes; leave one"):
        config(**{key: given[key]})


def test_names_of_buckets_are_not_given_twice() -> None:
    other = {"name": "plain", "slo_ms": 500, "variants": [{**VARIANT, "name": "base[32]"}]}
    with pytest.raises(ConfigError, match="two variants are named 'base\\[32\\]'"):
        read_config({"applications": [BERT, other]})


def test_models_that_are_swapped_have_no_buckets() -> None:
    known = read_config({"applications": [BERT], "backend": {"swap": True}})
    with pytest.raises(ConfigError, match="swap would load it"):
        model_specs(known, known_profiles(known))


@given(
    st.floats(0.01, 0.99),
    st.lists(st.tuples(st.floats(1.0, 50.0), st.floats(1.0, 9.0)), min_size=1, max_size=9),
)
def test_shorter_inputs_never_take_longer(share: float, steps: list[tuple[float, float]]) -> None:
    p50_ms = np.cumsum([step for step, _ in steps])
    tails = [tail * each for (_, tail), each in zip(steps, p50_ms, strict=True)]
    table = from_table_ms("t", list(p50_ms), p99_ms=list(np.maximum.accumulate(tails)))
    short = narrowed(table, share)
    assert all(0 < less <= more for less, more in zip(short.p50_ns, table.p50_ns, strict=True))
    assert list(short.p50_ns) == sorted(short.p50_ns)
    assert narrowed(linear("l", 1.0, 2.0), 0.5).linear_ns == (500_000, 2_000_000)


# Frontends


def parse(known: DeploymentConfig, pinned: str = "", **arrays: Any) -> ParsedRequest:
    message = pb.ModelInferRequest(model_name="bert")
    for name, array in arrays.items():
        add_input(message, from_array(name, array))
    if pinned:
        message.parameters[parameters.PINNED].string_param = pinned
    return parse_request(message, registry(known))


@pytest.mark.parametrize(
    ("size", "bucket"), [(1, 32), (32, 32), (33, 128), (128, 128), (129, 512), (512, 512)]
)
def test_a_request_goes_to_the_first_bucket_that_it_fits(size: int, bucket: int) -> None:
    known = config()
    parsed = parse(known, ids=np.ones((3, size), np.int64), mask=np.ones((3, size), np.int64))
    assert parsed.terms.application == f"bert[{bucket}]"
    # Whoever leaves the mask out gets one, and a row without a batch dimension has a size too.
    assert parse(known, ids=np.ones(size, np.int64)).terms.application == f"bert[{bucket}]"
    assert parse(known, "base", ids=np.ones(size, np.int64)).terms.pinned == f"base[{bucket}]"


def test_a_request_beyond_the_last_bucket_is_told_the_largest() -> None:
    with pytest.raises(BadRequestError, match="size of 513: send at most 512, its largest bucket"):
        parse(config(), ids=np.ones(513, np.int64))


def test_rows_are_split_by_what_batches_of_their_bucket_take() -> None:
    known = config()
    long = parse(known, ids=np.ones((20, 500), np.int64))
    assert [part.input.rows for part in long.split()] == [8, 8, 4]
    assert {part.terms.application for part in long.split()} == {"bert[512]"}
    assert not parse(known, ids=np.ones((20, 30), np.int64)).is_split


def test_a_model_without_one_of_its_buckets_is_not_served() -> None:
    found = registry(config())
    found.set_unavailable({"bert[128]": Unavailability(UnavailableCause.UNLOADED)})
    with pytest.raises(UnloadedModelError):
        found.find("bert")
    found.set_unavailable({})
    assert found.find("bert")[0].buckets == (32, 128, 512)


# Backends


def doubled(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A sum over what the mask leaves, a number for each token, and one that has no size."""
    ids, mask = batch["ids"], batch["mask"]
    fixed = np.zeros((len(ids), 8), np.float32)
    return {"sum": (ids * mask).sum(1), "tokens": 2 * ids, "fixed": fixed}


SPEC = ModelSpec(
    "base[8]",
    "users:load",
    4,
    inputs=(
        TensorSpec("ids", "INT64", (-1,)),
        TensorSpec("mask", "INT64", (-1,), optional=True),
    ),
    bucket=8,
    pad=True,
    mask="mask",
)


def padding(spec: ModelSpec = SPEC) -> PaddingRunner:
    inner = NamedRunner(doubled, spec.batch_size_max, spec.at_bucket().inputs)
    return PaddingRunner(inner, spec, find_cuts(spec, doubled))


def test_answers_are_cut_back_where_they_follow_their_inputs() -> None:
    # `fixed` has the size of the bucket by chance, and keeps it.
    assert find_cuts(SPEC, doubled) == {"tokens": [(0, 0)]}


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_padded_answers_are_those_of_each_request_alone(sizes: list[int]) -> None:
    runner = padding()
    items = [{"ids": np.arange(1, size + 1)} for size in sizes]
    for item in items:
        runner.check(item)
    assert len({runner.alike(item) for item in items}) == 1
    outputs = runner.run(runner.stage(items))
    for place, size in enumerate(sizes):
        assert outputs["sum"][place] == size * (size + 1) // 2
        assert outputs["tokens"][place].tolist() == list(range(2, 2 * size + 1, 2))
        assert outputs["fixed"][place].shape == (8,)


def test_a_mask_that_is_given_is_kept_and_padded() -> None:
    runner = padding()
    given = {"ids": np.arange(1, 4), "mask": np.array([1, 0, 1])}
    assert runner.alike(given) == runner.alike({"ids": np.arange(2)})
    outputs = runner.run(runner.stage([given, {"ids": np.arange(1, 8)}]))
    assert outputs["sum"].tolist() == [4, 28]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"ids": np.arange(9)}, "up to 8"),
        ({"ids": np.arange(4, dtype=np.int32)}, "int32"),
        ({"mask": np.arange(4)}, "'ids' is missing"),
        ({"ids": np.arange(4), "more": np.arange(4)}, "no input 'more'"),
    ],
)
def test_inputs_that_a_bucket_does_not_hold_are_refused(item: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        padding().check(item)


def test_pictures_are_padded_and_cut_along_both_sides() -> None:
    spec = ModelSpec("p", "users:load", 4, (3, -1, -1), "FP32", bucket=6, pad=True)

    def halves(batch: Any) -> Any:
        return batch.sum(1)

    cuts = find_cuts(spec, halves)
    runner = PaddingRunner(PlainRunner(halves, 4, (3, 6, 6), "float32"), spec, cuts)
    items = [np.ones((3, 4, 5), np.float32), np.ones((3, 6, 2), np.float32)]
    for item in items:
        runner.check(item)
    first, second = runner.run(runner.stage(items))
    assert (first.shape, second.shape) == ((4, 5), (6, 2))
    assert float(first.min()) == float(second.min()) == 3.0


# Simulations

SIMULATED: dict[str, Any] = {
    "seed": 3,
    "duration_s": 5,
    "backends": 2,
    "rate_rps": 800,
    "applications": [
        {
            "name": "bert",
            "slo_ms": 100,
            "rows": [1, 2, 8],
            "variants": [{"name": "base", "alpha_ms": 2.0, "beta_ms": 1.0, "batch_size_max": 32}],
        },
        {"name": "plain", "slo_ms": 50, "variants": [{"name": "v", "latency_ms": [1, 2, 3]}]},
    ],
}


def with_shapes(**shapes: Any) -> dict[str, Any]:
    bert, plain = SIMULATED["applications"]
    return {**SIMULATED, "applications": [{**bert, "shapes": shapes}, plain]}


def good(document: Mapping[str, Any]) -> float:
    scenario = read_scenario(document)
    log = simulate(scenario)
    in_time = (log.end_ns > 0) & (log.end_ns - log.arrivals.at_ns <= log.arrivals.slo_ns)
    return float(in_time.mean())


def test_short_requests_are_not_planned_as_long_ones() -> None:
    shapes = {"buckets": [32, 512], "sizes": [16, 20, 24, 32, 500], "tokens_max": 4096}
    assert good(with_shapes(**shapes)) > 0.99
    assert good(SIMULATED) < 0.9


def test_a_log_is_in_the_terms_of_its_file() -> None:
    scenario = read_scenario(with_shapes(buckets=[32, 512]))
    log = simulate(scenario)
    assert set(log.arrivals.application.tolist()) == {0, 1}
    assert log.first_variant == [0, 1]
    ran = log.end_ns > 0
    assert (log.variant[ran] == log.arrivals.application[ran]).all()
    assert simulate(scenario).batches == log.batches


def test_a_token_budget_bounds_batches() -> None:
    shapes = {"buckets": [32, 512], "sizes": [500], "tokens_max": 4096}
    log = simulate(read_scenario(with_shapes(**shapes)))
    assert max(size for *_, size in log.batches) <= 8


def test_clients_of_simulated_buckets_are_refused() -> None:
    document = with_shapes(buckets=[32])
    document["applications"][0]["clients"] = [{"count": 2, "fps": 10}]
    with pytest.raises(ConfigError, match="leave clients out"):
        simulate(read_scenario(document))
