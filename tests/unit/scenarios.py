"""A small scenario file, and others that differ from it in one place."""

from typing import Any

VARIANT: dict[str, Any] = {"name": "net", "alpha_ms": 1, "beta_ms": 4}
APPLICATION: dict[str, Any] = {"name": "app", "slo_ms": 50, "variants": [VARIANT]}
SCENARIO: dict[str, Any] = {"backends": 2, "rate_rps": 100, "applications": [APPLICATION]}


def with_top(**changes: Any) -> dict[str, Any]:
    return {**SCENARIO, **changes}


def with_application(**changes: Any) -> dict[str, Any]:
    return with_top(applications=[{**APPLICATION, **changes}])


def with_variant(**changes: Any) -> dict[str, Any]:
    return with_application(variants=[{**VARIANT, **changes}])


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}
