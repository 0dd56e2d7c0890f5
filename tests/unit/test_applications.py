"""One section for applications: the same in serving files and in scenarios."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from scenarios import APPLICATION, VARIANT, with_application, with_variant

from fermata.applications.application import Application
from fermata.applications.variant import Variant
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import known_profiles, router_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.sections import Fraction, Mark, Option, options, read_section
from fermata.foundation.units import ms
from fermata.foundation.validation import Fields
from fermata.router.assembly import RouterConfig, assemble
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.family import Family
from fermata.simulator.assembly import assemble as assemble_simulated
from fermata.simulator.scenario.scenario import read_scenario

CLIENTS = [{"count": 2, "fps": 30, "slo_ms": 70, "pinned": "net"}]
SET: dict[str, Any] = {
    "name": "other",
    "slo_ms": 33.5,
    "variants": [VARIANT, {"name": "table", "latency_ms": [9, 11], "p99_ms": [10, 13]}],
    "serving": "net",
    "policy": "eager",
    "policy_options": {"drop_window": 0.5},
    "hard_limit_ms": 77,
    "classes": {"weights": [1, 2], "recall_floors": [0, 0.5], "prior": [1, 2]},
    "canary": {"share": 0.2, "requests_min": 5},
    "load": "asked",
    "input": {"dtype": "UINT8", "shape": [3, 8, 8], "image": True, "fit": "whole"},
    "inputs": [{"name": "ids", "dtype": "INT64", "shape": [-1], "optional": False}],
    "outputs": [{"name": "scores", "dtype": "FP32", "shape": [4]}],
    "boxes": {"output": "found", "format": "xywh"},
    "state": {"memory": "memory_out"},
    "shapes": {"buckets": [32, 128], "pad": False, "tokens_max": 512},
    "labels": ["cat", "dog"],
    "rows": [1, 4],
    "clients": CLIENTS,
}
"""Examples of options whose type alone gives none that goes with the others."""
VARIANT_EXAMPLES: dict[str, Any] = {
    "name": "other",
    "model": "torchvision:resnet50",
    "profile": "h200-graph/resnet50",
    "profiles": {"slow": "h200-eager/resnet50"},
    "alpha_ms": 2,
    "beta_ms": 3,
    "latency_ms": [5, 6, 7],
    "p99_ms": [6, 7, 8],
    "accuracy": 0.75,
    "recall": [0.5, 0.75],
    "swap_in_ms": 12.5,
    "batch_size_max": 7,
    "input_size": 160,
    "precision": "bf16",
}


def example(option: Option) -> Any:
    """A value that the option's type allows, and that is not its default."""
    if option.key in SET:
        return SET[option.key]
    for value in (0.25, 3, True, False, "other"):
        with suppress(ConfigError):
            if option.read(Fields("", {option.key: value})) != option.default:
                return value
    raise AssertionError(f"{option.key} needs an example in SET")


EXAMPLES = {option.key: example(option) for option in options(Application)}
SHARED = [
    each for each in options(Application) if not {*each.marks} & {Mark.SERVED, Mark.SIMULATED}
]


def served(application: dict[str, Any]) -> Application:
    (found,) = read_config({"applications": [application]}).applications
    return found


def simulated(application: dict[str, Any]) -> Application:
    top = {"backends": 2, "rate_rps": 100, "applications": [application]}
    return read_scenario(top).applications[0]


def refusal(read: Any, application: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        read(application)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix("config: ")


def test_every_option_has_an_example() -> None:
    assert set(SET) <= set(EXAMPLES)
    assert {option.key for option in options(Variant)} == set(VARIANT_EXAMPLES)


@pytest.mark.parametrize("option", SHARED, ids=lambda option: option.key)
def test_a_shared_option_means_the_same_in_both_files(option: Any) -> None:
    row = {**APPLICATION, "variants": [{**VARIANT, "recall": [0.9, 0.8], "accuracy": 0.8}]}
    beside = {"clients": CLIENTS, "policy": "eager"}
    row |= {**beside, option.key: EXAMPLES[option.key]}
    if option.key == "policy":
        row["policy"] = "published"
    live, virtual = served(row), simulated(row)
    if option.key == "variants":
        assert [each.profile for each in live.variants] == list(virtual.profiles)
    else:
        assert getattr(live, option.field) == getattr(virtual, option.field)
        assert getattr(live, option.field) != option.default


@pytest.mark.parametrize("key", VARIANT_EXAMPLES)
def test_an_option_of_a_variant_means_the_same_in_both_files(key: str) -> None:
    row = {"name": "net", "latency_ms": [4, 5], "model": "digits:small"}
    if key in ("profile", "alpha_ms", "beta_ms"):
        del row["latency_ms"]
    if key in ("alpha_ms", "beta_ms"):
        row |= {"alpha_ms": 1, "beta_ms": 1}
    if key == "p99_ms":
        row["latency_ms"] = VARIANT_EXAMPLES["latency_ms"]
    row[key] = VARIANT_EXAMPLES[key]
    application = {**APPLICATION, "variants": [row]}
    config = read_config({"applications": [application], "backend": {"swap": True}})
    (live,) = router_config(config, known_profiles(config)).applications
    scenario = read_scenario({"backends": 1, "rate_rps": 1, "applications": [application]})
    virtual = assemble_simulated(scenario, {}).families[0].spec
    (one,), (other,) = live.variants, virtual.variants
    size = len(other.p50_ns)
    assert one.p50_ns[:size] == other.p50_ns
    assert (one.p99_ns or ())[:size] == (other.p99_ns or ())
    assert (one.name, one.accuracy, one.input_size) == (
        other.name,
        other.accuracy,
        other.input_size,
    )
    if key == "swap_in_ms":
        assert one.swap_in_ns == other.swap_in_ns == ms(12.5)
    if key == "batch_size_max":
        assert size == len(one.p50_ns) == 2


@pytest.mark.parametrize("key", EXAMPLES)
def test_each_file_takes_what_only_the_other_driver_uses(key: str) -> None:
    row = {**APPLICATION, "clients": CLIENTS, "policy": "eager", key: EXAMPLES[key]}
    if key in ("classes", "variants"):
        row["variants"] = [{**VARIANT, "recall": [0.9, 0.8]}]
    assert simulated(row).slo_ns > 0
    if key not in ("canary", "load"):  # These need another version, or an open repository.
        config = read_config({"applications": [row]})
        plain = config.model_dump()
        assert read_config(plain).model_dump() == plain


@pytest.mark.parametrize(
    "changes",
    [
        {"slo": 3},
        {"slo_ms": -5},
        {"slo_ms": "soon"},
        {"slo_ms": float("nan")},
        {"name": ""},
        {"name": 3},
        {"hard_limit_ms": 40},
        {"newest": "yes"},
        {"policy": "symfony"},
        {"policy": "eager", "policy_options": {"hold": "auto"}},
        {"policy_options": {"hold": "auto"}},
        {"backend_share": 0},
        {"fair_share": -1},
        {"accuracy_floor": 76},
        {"serving": "none"},
        {"weight": -1},
        {"copies": 0},
        {"clients": [{"fps": 0}]},
        {"clients": [{"pinned": "none"}]},
        {"clients": 3},
        {"version": 0},
        {"version": 1.5},
        {"canary": {"share": 1}},
        {"canary": {"shares": 0.5}},
        {"input": {"dtype": "FP8"}},
        {"input": {"shape": [0]}},
        {"labels": "cat"},
        {"classes": {"prior": "guess"}},
        {"classes": {"surprise": 1}},
        {"variants": []},
        {"variants": [{**VARIANT, "alpha": 1}]},
        {"variants": [{**VARIANT, "alpha_ms": 0}]},
        {"variants": [{**VARIANT, "beta_ms": None}]},
        {"variants": [{**VARIANT, "latency_ms": [1]}]},
        {"variants": [{"name": "x", "latency_ms": [6, 5]}]},
        {"variants": [{**VARIANT, "p99_ms": [1]}]},
        {"variants": [{**VARIANT, "accuracy": 76}]},
        {"variants": [{**VARIANT, "batch_size_max": 0}]},
        {"variants": [{"name": "x", "profile": "./none.json#x"}]},
        {"variants": [{"name": "x", "profile": 7}]},
    ],
    ids=str,
)
def test_a_mistake_is_refused_in_the_same_words(changes: dict[str, Any]) -> None:
    row = {**APPLICATION, **changes}
    assert refusal(served, row) == refusal(simulated, row)


def test_numbers_in_quotes_are_numbers() -> None:
    row = {**APPLICATION, "slo_ms": "50", "variants": [{**VARIANT, "batch_size_max": "8"}]}
    assert served(row).slo_ns == simulated(row).slo_ns == ms(50)
    assert served(row).variants[0].batch_size_max == 8


def test_a_variant_without_run_times_is_measured_live_and_refused_in_simulations() -> None:
    row = {**APPLICATION, "variants": [{"name": "s", "model": "digits:small"}]}
    assert served(row).variants[0].profile is None
    message = refusal(simulated, row)
    assert "applications[0].variants[0]" in message
    assert "`fermata profile digits:small -o FILE`" in message
    assert "emulated model needs" in refusal(served, {**APPLICATION, "variants": [{"name": "s"}]})


def test_a_batch_size_limit_holds_in_simulations_too() -> None:
    (limited,) = read_scenario(with_variant(batch_size_max=3)).applications
    scenario = read_scenario(with_variant(batch_size_max=3))
    (variant,) = assemble_simulated(scenario, {}).families[0].spec.variants
    assert (limited.variants[0].batch_size_max, len(variant.p50_ns)) == (3, 3)
    (free,) = assemble_simulated(read_scenario(with_application()), {}).families[0].spec.variants
    assert len(free.p50_ns) == 46  # 4 + 46 ms is the SLO.


@dataclass(frozen=True, slots=True)
class PatientSpec(ApplicationSpec):
    """An application with an option that one policy would read."""

    patience: Fraction = 0.5


def test_an_option_of_one_policy_is_a_field_of_the_spec_alone() -> None:
    given = {"name": "a", "slo_ms": 50, "patience": 0.25}
    variants = (VariantSpec("v", (ms(5),)),)
    spec = read_section(PatientSpec, Fields("", given), variants=variants)
    (family,) = assemble(RouterConfig((spec,))).families
    assert isinstance(family, Family)
    assert isinstance(family.spec, PatientSpec)
    assert (family.spec.patience, family.slo_ns) == (0.25, ms(50))
    with pytest.raises(ConfigError, match=r"patience=25: must be a fraction from 0 to 1"):
        read_section(PatientSpec, Fields("", {**given, "patience": 25}), variants=variants)
