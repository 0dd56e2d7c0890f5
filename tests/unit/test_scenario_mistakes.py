"""Mistakes in scenario files: one line each, with the key, the value, and what is allowed."""

from pathlib import Path
from typing import Any

import pytest
from scenarios import (
    APPLICATION,
    SCENARIO,
    VARIANT,
    with_application,
    with_top,
    with_variant,
    without,
)

from fermata.foundation.errors import ConfigError
from fermata.simulator.scenario.scenario import load_scenario, read_scenario

NAN, INF = float("nan"), float("inf")
TRACE = {"process": "trace", "rps": [1]}
CLIENT = {"count": 1, "fps": 1}
WEIGHTED = [{**APPLICATION, "name": "a"}, {**APPLICATION, "name": "b", "weight": 3}]
FAULT = {"at_s": 1, "backend": 0, "kind": "crash"}


def refusal(data: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read_scenario(data)
    message = str(caught.value)
    assert "\n" not in message
    return message


def arrivals_map(d0: object, d1: object) -> dict[str, Any]:
    return with_top(arrivals={"process": "map", "d0": d0, "d1": d1})


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (None, ["scenario=None", "must be an object"]),
        ([1], ["scenario=[1]", "must be an object"]),
        ("text", ["scenario='text'", "must be an object"]),
        ({}, ["applications=None", "either applications or zoo"]),
        (with_top(bakends=3), ["bakends=3", "unknown key", "backends"]),
        (with_top(**{"1": 2}), ["1=2", "unknown key"]),
        (without(SCENARIO, "backends"), ["backends=None", "at least 1"]),
        (with_top(backends=0), ["backends=0", "at least 1"]),
        (with_top(backends=2.5), ["backends=2.5", "whole number"]),
        (with_top(backends=True), ["backends=True", "whole number"]),
        (with_top(backends="8"), ["backends='8'", "whole number"]),
        (with_top(seed=-1), ["seed=-1", "at least 0"]),
        (with_top(seed="x"), ["seed='x'", "whole number"]),
        (with_top(duration_s=0), ["duration_s=0", "above 0"]),
        (with_top(duration_s=-1), ["duration_s=-1", "above 0"]),
        (with_top(duration_s=NAN), ["duration_s=nan", "finite"]),
        (with_top(duration_s="30s"), ["duration_s='30s'", "must be a number"]),
        (with_top(warmup_s=-0.1), ["warmup_s=-0.1", "at least 0"]),
        (with_top(dispatch_ms=-1), ["dispatch_ms=-1", "at least 0"]),
        (with_top(dispatch_ms=INF), ["dispatch_ms=inf", "finite"]),
        (with_top(rate_rps=0), ["rate_rps=0", "above 0"]),
        (with_top(rate_rps=NAN), ["rate_rps=nan", "finite"]),
        (with_top(rate_rps=[1]), ["rate_rps=[1]", "must be a number"]),
        (without(SCENARIO, "rate_rps"), ["rate_rps=None", "is needed with process poisson"]),
        (
            with_top(zoo={"table": "symphony-1080ti"}),
            ["applications=", "either applications or zoo"],
        ),
        (with_top(policy="symfony"), ["policy='symfony'", "must be one of", "deferred"]),
        (with_top(policy=7), ["policy=7", "must be one of"]),
        (with_top(policy_options=[1]), ["policy_options=[1]", "must be an object"]),
        (
            with_top(policy_options={"holdd": "auto"}),
            ["policy_options.holdd='auto'", "unknown option of deferred", "hold_ms_max"],
        ),
        (
            with_top(policy_options={"hold": "never"}),
            ["policy_options.hold='never'", "deferred, auto, eager"],
        ),
        (
            with_top(policy_options={"drop_window": "x"}),
            ["policy_options.drop_window='x'", "number"],
        ),
        (
            with_top(policy_options={"wait_margin": NAN}),
            ["policy_options.wait_margin=nan", "finite"],
        ),
        (
            with_top(policy_options={"hold_ms_max": -1}),
            ["policy_options.hold_ms_max=-1", "at least"],
        ),
        (
            with_top(policy="eager", policy_options={"hold": "auto"}),
            ["policy_options.hold='auto'", "unknown option of eager"],
        ),
        (
            with_top(policy="timeout", policy_options={"max_batch_size": 1.5}),
            ["policy_options.max_batch_size=1.5", "whole number"],
        ),
        (
            with_top(policy="ramsis", policy_options={"slos_ms": [10, 10**400]}),
            ["policy_options.slos_ms=1000", "finite"],
        ),
        (with_top(execution={"jiter": 1}), ["execution.jiter=1", "unknown key", "jitter"]),
        (with_top(execution=0.1), ["execution=0.1", "must be an object"]),
        (with_top(execution={"jitter": -0.1}), ["execution.jitter=-0.1", "at least 0"]),
        (with_top(execution={"jitter": "x"}), ["execution.jitter='x'", "number"]),
        (with_top(execution={"slow_share": 2}), ["execution.slow_share=2", "0 to 1"]),
        (with_top(execution={"slow_factor": 0}), ["execution.slow_factor=0", "above 0"]),
        (with_top(fetch_ms=-1), ["fetch_ms=-1", "at least 0"]),
        (with_top(hand_on_ms=-1), ["hand_on_ms=-1", "at least 0"]),
        (with_top(execution={"jitter": [0.1]}), ["execution.jitter[0]=0.1", "must be an object"]),
        (
            with_top(execution={"jitter": [{"jitter": 0.1}, {"from_s": 0, "jitter": 0.2}]}),
            ["execution.jitter=0.0", "must rise"],
        ),
        (
            with_top(execution={"jitter": [{"from_s": -1, "jitter": 0.1}]}),
            ["execution.jitter[0].from_s=-1", "at least 0"],
        ),
        (
            with_top(execution={"jitter": [{"from_s": 1}]}),
            ["execution.jitter[0].jitter=None", "number"],
        ),
        (with_top(popularity="fair"), ["popularity='fair'", "equal, weights or"]),
        (with_top(popularity={"zipf": -1}), ["popularity.zipf=-1", "at least 0"]),
        (with_top(popularity={"zip": 1}), ["popularity.zip=1", "unknown key"]),
        (
            with_top(popularity="equal", applications=WEIGHTED),
            ["popularity='equal'", "contradicts weight=3 of application 'b'"],
        ),
        (
            with_top(popularity={"zipf": 1}, applications=WEIGHTED),
            ["popularity={'zipf': 1}", "contradicts weight=3 of application 'b'"],
        ),
        (
            with_top(
                popularity={"zipf": 1}, applications=[{**APPLICATION, "weight": 2, "copies": 2}]
            ),
            ["popularity={'zipf': 1}", "contradicts weight=2 of application 'app-0'"],
        ),
        (
            with_top(
                arrivals={"process": "trace", "applications": {"a": [5], "b": [9]}},
                applications=WEIGHTED,
            ),
            ["weight=3 of application 'b'", "arrivals set the rate of each application"],
        ),
        (
            with_top(
                arrivals={"process": "periodic"},
                applications=[{**each, "clients": [{"fps": 30}]} for each in WEIGHTED],
            ),
            ["weight=3 of application 'b'", "arrivals set the rate of each application"],
        ),
        (
            {**with_application(weight=0), "popularity": "weights"},
            ["applications='weight'", "above 0"],
        ),
        # Applications
        (with_top(applications=[]), ["applications=[]", "at least one application"]),
        (with_top(applications={"a": 1}), ["applications={'a': 1}", "must be a list"]),
        (with_top(applications=["a"]), ["applications[0]='a'", "must be an object"]),
        (
            with_top(applications=[APPLICATION, APPLICATION]),
            ["applications='app'", "name of two applications"],
        ),
        (
            with_top(applications=[{**APPLICATION, "copies": 2}, {**APPLICATION, "name": "app-1"}]),
            ["applications='app-1'", "name of two applications"],
        ),
        (with_application(name=""), ["applications[0].name=''", "not empty"]),
        (with_application(name=3), ["applications[0].name=3", "must be a string"]),
        (with_application(slo=3), ["applications[0].slo=3", "unknown key", "slo_ms"]),
        (
            with_top(applications=[without(APPLICATION, "slo_ms")]),
            ["applications[0].slo_ms=None", "is needed"],
        ),
        (with_application(slo_ms=-5), ["applications[0].slo_ms=-5", "above 0"]),
        (with_application(slo_ms=4.9), ["applications[0].slo_ms=4.9", "at least 5 ms"]),
        (with_application(slo_ms=NAN), ["applications[0].slo_ms=nan", "finite"]),
        (
            with_application(hard_limit_ms=40),
            ["applications[0].hard_limit_ms=40", "at least slo_ms, 50"],
        ),
        (with_application(copies=0), ["applications[0].copies=0", "at least 1"]),
        (with_application(weight=-1), ["applications[0].weight=-1", "at least 0"]),
        (with_application(newest="yes"), ["applications[0].newest='yes'", "true or false"]),
        (with_application(newest=True), ["applications[0].newest=True", "needs clients"]),
        (with_application(variants=[]), ["applications[0].variants=[]", "at least one variant"]),
        (with_application(clients=[3]), ["applications[0].clients[0]=3", "must be an object"]),
        (
            with_application(clients=[{**CLIENT, "count": 0}]),
            ["applications[0].clients[0].count=0", "at least 1"],
        ),
        (
            with_application(clients=[{**CLIENT, "slo_ms": 3}]),
            ["applications[0].clients[0].slo_ms=3", "at least 5 ms"],
        ),
        (
            with_application(clients=[{**CLIENT, "weight": 0}]),
            ["applications[0].clients[0].weight=0", "above 0"],
        ),
        (
            with_application(clients=[{**CLIENT, "fps": 0}]),
            ["applications[0].clients[0].fps=0", "above 0"],
        ),
        (
            with_application(clients=[{**CLIENT, "priority": -1}]),
            ["applications[0].clients[0].priority=-1", "at least 0"],
        ),
        # Variants
        (
            with_application(variants=[{"name": "x"}]),
            ["applications[0].variants[0]=[]", "alpha_ms with beta_ms, latency_ms, profile"],
        ),
        (
            with_variant(latency_ms=[5]),
            ["applications[0].variants[0]=['alpha_ms', 'latency_ms']", "give one of"],
        ),
        (with_variant(alpha_ms=0), ["applications[0].variants[0].alpha_ms=0", "above 0"]),
        (with_variant(beta_ms=-1), ["applications[0].variants[0].beta_ms=-1", "at least 0"]),
        (
            with_application(variants=[without(VARIANT, "beta_ms")]),
            ["applications[0].variants[0].beta_ms=None", "number"],
        ),
        (with_variant(accuracy=76), ["applications[0].variants[0].accuracy=76", "fraction"]),
        (with_variant(swap_in_ms=-1), ["applications[0].variants[0].swap_in_ms=-1", "at least 0"]),
        (with_variant(name=None), ["applications[0].variants[0].name=None", "string"]),
        (
            with_application(variants=[{"name": "x", "latency_ms": [6, 5]}]),
            ["applications[0].variants[0].latency_ms", "p50_ms[1]=5", "at least 6"],
        ),
        (
            with_application(variants=[{"name": "x", "latency_ms": [NAN]}]),
            ["applications[0].variants[0].latency_ms", "nan", "finite"],
        ),
        (
            with_application(variants=[{"profile": "symphony-1080ti/ResNet5O"}]),
            ["no profile 'ResNet5O'", "close: ResNet50"],
        ),
        # Arrivals
        (with_top(arrivals={"process": "cron"}), ["arrivals.process='cron'", "must be one of"]),
        (with_top(arrivals={"shape": 2}), ["arrivals.shape=2", "unknown key"]),
        (with_top(arrivals={"process": "gamma"}), ["arrivals.shape=None", "number"]),
        (with_top(arrivals={"process": "gamma", "shape": 0}), ["arrivals.shape=0", "above 0"]),
        (with_top(arrivals={**TRACE, "rps": [0, 0]}), ["arrivals.rps=[0, 0]", "above 0"]),
        (with_top(arrivals={**TRACE, "rps": []}), ["arrivals.rps=[]", "above 0"]),
        (with_top(arrivals={**TRACE, "rps": [1, -1]}), ["arrivals.rps[1]=-1", "at least 0"]),
        (with_top(arrivals={**TRACE, "rps": [NAN]}), ["arrivals.rps[0]=nan", "finite"]),
        (with_top(arrivals={**TRACE, "step_s": 0}), ["arrivals.step_s=0", "above 0"]),
        (
            with_top(arrivals={"process": "periodic", "phase": "mixed"}),
            ["arrivals.phase='mixed'", "locked, staggered, random"],
        ),
        (arrivals_map([], []), ["arrivals.d0=[]", "square matrix"]),
        (arrivals_map([[-1, 0]], [[1, 0]]), ["arrivals.d0[0]=[-1, 0]", "must hold 1 rates"]),
        (arrivals_map([[-1]], [[1, 0], [0, 1]]), ["arrivals.d1=", "as many rows as d0, 1"]),
        (arrivals_map([[-1]], [[2]]), ["arrivals.d0[0]=", "must sum to 0, not 1"]),
        (arrivals_map([[-1, -1], [1, -2]], [[2, 0], [0, 1]]), ["arrivals.d0[0]=", "0 or more"]),
        (arrivals_map([[-1, 1], [1, -1]], [[0, 0], [0, 0]]), ["arrivals.d1=", "above 0"]),
        (arrivals_map([["x"]], [[1]]), ["arrivals.d0[0][0]='x'", "number"]),
        # Faults
        (with_top(faults=FAULT), ["faults=", "must be a list"]),
        (with_top(faults=[{**FAULT, "backend": 2}]), ["faults[0].backend=2", "below 2"]),
        (
            with_top(faults=[{**FAULT, "kind": "melt"}]),
            ["faults[0].kind='melt'", "crash, hang, slow"],
        ),
        (with_top(faults=[{**FAULT, "at_s": -1}]), ["faults[0].at_s=-1", "at least 0"]),
        (with_top(faults=[{**FAULT, "for_s": 0}]), ["faults[0].for_s=0", "above 0"]),
        (with_top(faults=[{**FAULT, "factor": 0}]), ["faults[0].factor=0", "above 0"]),
        # The zoo
        (
            {"backends": 1, "rate_rps": 1, "zoo": {"table": "symphony"}},
            ["no table 'symphony'", "symphony-a100"],
        ),
        (
            {"backends": 1, "rate_rps": 1, "zoo": {"table": "h200-graph"}},
            ["zoo.table='h200-graph'", "has no SLOs"],
        ),
        (
            {"backends": 1, "rate_rps": 1, "zoo": {"table": "symphony-a100", "setting": "gt3"}},
            ["zoo.setting='gt3'", "all, gt2, lt2"],
        ),
        ({"backends": 1, "rate_rps": 1, "zoo": {}}, ["zoo.table=None", "string"]),
        ({"backends": 1, "rate_rps": 1, "zoo": None}, ["zoo=None", "must be an object"]),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) and len(value) > 1 else "",
)
def test_mistakes_are_refused_in_one_line(data: object, parts: list[str]) -> None:
    message = refusal(data)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "scenario=None"),
        ("- 1\n- 2\n", "scenario=[1, 2]"),
        ("a: b: c", "is neither YAML nor JSON"),
        ("backends: [", "is neither YAML nor JSON"),
        ("seed: !!python/object:os.system x", "is neither YAML nor JSON"),
        ("\x00", "is neither YAML nor JSON"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        load_scenario(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_scenario(tmp_path)


@pytest.mark.parametrize("text", ["seed: 2024-13-45\n", "[" * 1000], ids=["date", "depth"])
def test_odd_files_are_refused_too(tmp_path: Path, text: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_scenario(path)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(arrivals_map([[NAN]], [[10]]), id="map-nan"),
        pytest.param(arrivals_map([[-INF]], [[INF]]), id="map-inf"),
        pytest.param(arrivals_map([[-10, 5], [0, 0]], [[5, 0], [0, 0]]), id="map-absorbing"),
        pytest.param(with_top(arrivals={**TRACE, "step_s": 1e-10}), id="step-of-0-ns"),
        pytest.param(with_top(duration_s=1e-10), id="duration-of-0-ns"),
        pytest.param(
            with_top(popularity={"zipf": 2000}, applications=[{**APPLICATION, "copies": 2}]),
            id="zipf-overflow",
        ),
        pytest.param(
            with_application(variants=[{"name": "x", "latency_ms": [5], "beta_ms": 4}]),
            id="beta-beside-a-table",
        ),
        pytest.param(
            with_top(faults=[{**FAULT, "for_s": 5}, {**FAULT, "at_s": 2, "for_s": 1}]),
            id="crash-of-the-crashed",
        ),
    ],
)
def test_what_cannot_run_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        read_scenario(data)
