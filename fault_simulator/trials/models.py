"""Models of the story with mapped cameras and a version on trial."""

from fermata.deployments.specs.served_model import ServedModel, TensorSpec
from fermata.fault_simulator.deployment import MoreModels
from fermata.foundation.json_types import JsonObject
from fermata.foundation.units import ms

SLO_NS = ms(150)
INPUT = TensorSpec("input", "INT64", (1,))
EYES = ServedModel("eyes", INPUT, SLO_NS, SLO_NS)
VERSIONS = ("1", "2")
TRIED = tuple(
    ServedModel(
        *("tried", INPUT, SLO_NS, SLO_NS),
        versions=VERSIONS,
        version=version,
        router_name=f"tried@{version}",
        share=share,
    )
    for version, share in zip(VERSIONS, (1.0, 0.4), strict=True)
)
BAD = "tried-2"
"""The variant of the version on trial."""
SIDES = (128, 256)
TRIAL_TABLES = {
    "eyes-1": tuple(ms(3 + size) for size in range(1, 9)),
    "eyes-2": tuple(ms(6 + 2 * size) for size in range(1, 9)),
    "tried-1": tuple(ms(4 + size) for size in range(1, 9)),
    BAD: tuple(ms(3 + size) for size in range(1, 9)),
}


def _variant(name: str, **more: object) -> JsonObject:
    table: list[object] = [each / 1e6 for each in TRIAL_TABLES[name]]
    found = {"name": name, "latency_ms": table, "batch_size_max": 8, **more}
    return found  # type: ignore[return-value]


CANARY: JsonObject = {"share": 0.4, "bad_rate_max": 0.3, "requests_min": 10}
TRIAL_ENTRIES: tuple[JsonObject, ...] = (
    {
        "name": "eyes",
        "slo_ms": SLO_NS / 1e6,
        "policy": "jellyfish",
        "variants": [
            _variant("eyes-1", accuracy=0.4, input_size=SIDES[0]),
            _variant("eyes-2", accuracy=0.6, input_size=SIDES[1]),
        ],
    },
    {"name": "tried", "version": 1, "slo_ms": 150, "variants": [_variant("tried-1")]},
    {
        "name": "tried",
        "version": 2,
        "slo_ms": 150,
        "canary": CANARY,
        "variants": [_variant(BAD)],
    },
)
TRIALS = MoreModels(TRIAL_ENTRIES, TRIAL_TABLES, (EYES, *TRIED), reports=True)
