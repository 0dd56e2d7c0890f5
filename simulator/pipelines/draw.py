"""Scenarios with pipelines: the four scenes that are told about, and others drawn from a seed."""

from random import Random

from fermata.foundation.json_types import Json, JsonObject

JITTER = 0.03
BACKENDS = (6, 12)
"""For each application: with few, batches of the bound's size hardly ever fill in time."""
FIXED_MS = (4.0, 16.0)
EACH_MS = (0.5, 4.0)
FAN_OUT = (0.5, 8.0)
"""Of one edge of a pipeline. Where several vary, a few queries have most of the work, and no rule
can serve 99 in 100 of them near the bound."""
CHANGE = (0.6, 1.6)
"""A fan-out that changes does so by a factor within these, half way."""
FIXED_FAN_OUT = (1, 2)
BATCHES = (12, 32)
"""The SLO is what a batch of such a size takes at every stage of the longest way."""

Edge = tuple[int, int]
SHAPES: dict[str, tuple[Edge, ...]] = {
    "chain of 2": ((0, 1),),
    "chain of 3": ((0, 1), (1, 2)),
    "chain of 4": ((0, 1), (1, 2), (2, 3)),
    "tree of 3": ((0, 1), (0, 2)),
    "tree of 4": ((0, 1), (0, 2), (1, 3)),
    "wide tree of 4": ((0, 1), (0, 2), (0, 3)),
}
"""Edges by shape; the tree's stages are numbered from the first one."""


def told_scenes() -> dict[str, JsonObject]:
    """Scenes A to D: two stages each, without jitter."""
    heavy, light, even = (10.0, 4.0), (5.0, 0.8), (5.0, 1.0)
    return {
        "A": _two_stages(heavy, light, {"mean": 5.0}, 150.0, 16),
        "B": _two_stages(heavy, light, {"mean": 19.0}, 250.0, 16),
        "C": _two_stages(even, even, 1, 60.0, 8),
        "D": _two_stages(even, even, {"mean": 3.0}, 60.0, 2),
    }


def _two_stages(
    first: tuple[float, float],
    second: tuple[float, float],
    fan_out: Json,
    slo_ms: float,
    backends: int,
) -> JsonObject:
    stages: list[Json] = [
        {"application": "stage-0"},
        {"application": "stage-1", "fan_out": fan_out},
    ]
    return {
        "backends": backends,
        "applications": [
            _application(place, times, slo_ms) for place, times in enumerate((first, second))
        ],
        "pipelines": [{"name": "pipeline", "slo_ms": slo_ms, "stages": stages}],
    }


def _application(place: int, times: tuple[float, float], slo_ms: float) -> JsonObject:
    beta_ms, alpha_ms = times
    variant: JsonObject = {"name": f"model-{place}", "alpha_ms": alpha_ms, "beta_ms": beta_ms}
    return {"name": f"stage-{place}", "slo_ms": slo_ms, "variants": [variant]}


def draw(seed: int, duration_s: float) -> JsonObject:
    """A scenario of 2 to 4 stages: chains and trees, or two pipelines that share a stage."""
    rng = Random(f"pipelines {seed}")
    shape = rng.choice(list(SHAPES))
    edges = SHAPES[shape]
    stages = 1 + max(child for _, child in edges)
    times = [
        (round(rng.uniform(*FIXED_MS), 2), round(rng.uniform(*EACH_MS), 2)) for _ in range(stages)
    ]
    batch = rng.randint(*BATCHES)
    slo_ms = round(_longest_ms(edges, times, batch), 1)
    rows: list[Json] = [{"application": "stage-0"}]
    varied = rng.randrange(len(edges))
    for place, (parent, child) in enumerate(edges):
        fan_out = _fan_out(rng, duration_s) if place == varied else rng.randint(*FIXED_FAN_OUT)
        after = f"stage-{parent}"
        rows.append({"application": f"stage-{child}", "after": after, "fan_out": fan_out})
    pipelines: list[Json] = [{"name": "first", "slo_ms": slo_ms, "weight": 2, "stages": rows}]
    applications = [_application(place, each, slo_ms) for place, each in enumerate(times)]
    if rng.random() < 0.4:
        # A second pipeline begins with a stage of its own, and ends with the first one's last.
        own = round(rng.uniform(*FIXED_MS), 2), round(rng.uniform(*EACH_MS), 2)
        applications.append(_application(stages, own, slo_ms))
        shared: list[Json] = [
            {"application": f"stage-{stages}"},
            {"application": f"stage-{stages - 1}", "fan_out": _fan_out(rng, duration_s)},
        ]
        pipelines.append({"name": "second", "slo_ms": slo_ms, "weight": 1, "stages": shared})
    return {
        "backends": len(applications) * rng.randint(*BACKENDS),
        "execution": {"jitter": JITTER},
        "applications": list(applications),
        "pipelines": pipelines,
    }


def _fan_out(rng: Random, duration_s: float) -> Json:
    kind = rng.choice(("fixed", "geometric", "changing"))
    mean = round(rng.uniform(*FAN_OUT), 2)
    if kind == "fixed":
        return max(1, round(mean / 2.0))
    if kind == "geometric":
        return {"mean": mean}
    later = round(mean * rng.uniform(*CHANGE), 2)
    steps: list[Json] = [
        {"from_s": 0, "mean": mean},
        {"from_s": round(0.5 * duration_s, 3), "mean": later},
    ]
    return {"mean": steps}


def _longest_ms(edges: tuple[Edge, ...], times: list[tuple[float, float]], batch: int) -> float:
    """Run times of such batches on the longest way, of a first stage and the last at the least."""
    took = [beta_ms + alpha_ms * batch for beta_ms, alpha_ms in times]
    longest = [took[0]] + [0.0] * (len(took) - 1)
    for parent, child in edges:
        longest[child] = longest[parent] + took[child]
    return max(longest)
