"""The HTTP API against its own description, by requests that schemathesis makes up."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from stand_in import Running, options

schemathesis = pytest.importorskip("schemathesis", reason="of the dev extra")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

# What a model takes is not in the description: most of what that allows is refused by name.
UNKNOWABLE = [checks.positive_data_acceptance]
GOOD = schemathesis.GenerationMode.POSITIVE
pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    system = Running(options)
    yield system
    system.close()


def test_every_answer_is_as_described(running: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{running.url}/v2/openapi.json")
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        # Any text is a name; a body can be wrong.
        modes = list(schemathesis.GenerationMode) if operation.body else [GOOD]
        for mode in modes:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
            def holds(case: Any) -> None:
                case.call_and_validate(excluded_checks=UNKNOWABLE)
                if "model" in case.path_parameters:
                    # Names of models are not in the description: most that are made up are none.
                    case.path_parameters["model"] = "sum"
                    case.call_and_validate(excluded_checks=UNKNOWABLE)

            holds()
            tried += 1
    assert tried == 9 + 2 * 7
    assert running.frontend.hub.table.payload_bytes == 0
