"""The papers' workloads as scenarios, so that every benchmark means the same by a name."""

from fermata.simulator.scenario.scenario import Scenario, read_scenario

RESNET50 = {"name": "resnet50", "alpha_ms": 1.053, "beta_ms": 5.072}
INCEPTION_RESNET_V2 = {"name": "inception-resnet-v2", "alpha_ms": 5.090, "beta_ms": 18.368}
RESNET50_1080TI = {"name": "resnet50", "alpha_ms": 2.05, "beta_ms": 5.378}


def scenario(**values: object) -> Scenario:
    """A scenario from the keys of a scenario file; a goodput search ignores the rate."""
    given = {"rate_rps": 1000, "seed": 11, **values}
    return read_scenario({key: value for key, value in given.items() if value is not None})


def application(
    variant: dict[str, object], slo_ms: float, copies: int = 1
) -> list[dict[str, object]]:
    return [{"name": variant["name"], "slo_ms": slo_ms, "copies": copies, "variants": [variant]}]


def table4(variant: dict[str, object], slo_ms: float, **values: object) -> Scenario:
    """Symphony Table 4: one model on eight GPUs, Poisson."""
    return scenario(backends=8, applications=application(variant, slo_ms), **values)


def fleet(
    groups: list[dict[str, object]], slo_ms: float, models: int, **values: object
) -> Scenario:
    """ResNet-50 on backends of several kinds."""
    return scenario(backends=groups, applications=application(RESNET50, slo_ms, models), **values)


def zoo(table: str, setting: str, **values: object) -> Scenario:
    """Symphony Fig. 6: the model zoo on 64 GPUs."""
    return scenario(backends=64, zoo={"table": table, "setting": setting}, **values)


def fig10(**values: object) -> Scenario:
    """Symphony Fig. 10: ten ResNet-50 with an SLO of 100 ms on 24 GPUs."""
    return scenario(backends=24, applications=application(RESNET50_1080TI, 100, 10), **values)


def bursty(slo_ms: float, **values: object) -> Scenario:
    """Symphony Fig. 7: 20 ResNet-50 on 32 GPUs, gaps of Gamma(0.05)."""
    return scenario(
        backends=32,
        applications=application(RESNET50, slo_ms, 20),
        arrivals={"process": "gamma", "shape": 0.05},
        **values,
    )


def cameras(phase: str, **values: object) -> Scenario:
    """120 cameras at 10 frames a second whose newest frame replaces the one before. Six backends
    run at most 19 frames each within the SLO, so 1,140 frames a second: 5 % too few."""
    return read_scenario(
        {
            "seed": 11,
            "backends": 6,
            "arrivals": {"process": "periodic", "phase": phase},
            "applications": [
                {
                    "name": "detector",
                    "slo_ms": 100,
                    "newest": True,
                    "clients": [{"count": 120, "fps": 10}],
                    "variants": [{"name": "detector", "alpha_ms": 4.84, "beta_ms": 8}],
                }
            ],
            **values,
        }
    )


HEAVY = {"name": "heavy", "latency_ms": [42.9], "accuracy": 0.8278}
LIGHT = {"name": "light", "latency_ms": [11.0], "accuracy": 0.7769}
BATCH_FACTORS = [0.4 + 0.6 * size for size in range(1, 6)]
"""Run time of a batch over that of one request, where RL-edge's variants run in batches."""
HEAVY_BATCHES = {**HEAVY, "latency_ms": [42.9 * factor for factor in BATCH_FACTORS]}
LIGHT_BATCHES = {**LIGHT, "latency_ms": [11.0 * factor for factor in BATCH_FACTORS]}
BURST_RPS, NORMAL_RPS = 180.0, 10.0
BURST_S = {"text": 1 / 0.036, "table": 1 / 0.0036}
"""Mean length of a burst: Eq. 12 as RL-edge's text has it, and ten times as long, which is what
its Table 2 fits. Normal phases last 18 times as long."""
NORMAL_OVER_BURST = 18


def edge(**values: object) -> Scenario:
    """RL-edge's Section 5.1: two heavy and two light instances, SLO 300 ms."""
    return read_scenario(
        {
            "seed": 11,
            "backends": 4,
            "policy": "routing",
            "applications": [{"name": "vision", "slo_ms": 300, "variants": [HEAVY, LIGHT]}],
            **values,
        }
    )


def eq12(reading: str) -> dict[str, object]:
    """RL-edge's Eq. 12, a MAP that switches between bursts and normal load."""
    ends, begins = 1 / BURST_S[reading], 1 / (NORMAL_OVER_BURST * BURST_S[reading])
    return {
        "process": "map",
        "d0": [[-BURST_RPS - ends, ends], [begins, -NORMAL_RPS - begins]],
        "d1": [[BURST_RPS, 0], [0, NORMAL_RPS]],
    }


def periodic_bursts(reading: str = "text") -> dict[str, object]:
    """RL-edge's Section 5.2.3: the same load with bursts of fixed length at fixed times."""
    rps = [*[NORMAL_RPS] * NORMAL_OVER_BURST, BURST_RPS]
    return {"process": "trace", "rps": rps, "step_s": BURST_S[reading]}
