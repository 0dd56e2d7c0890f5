"""Promises of the queue that looks ahead, beside what a simulation then sees."""

from collections.abc import Sequence

import pytest

from fermata.router.core.events import Request
from fermata.router.core.signals import Promise
from fermata.router.policies.lookahead.source import LookaheadQueue
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import Scenario, read_scenario
from fermata.simulator.tournament.play import earned

TOLERANCE = 0.005
WARM = 2_000
"""Requests before those that count."""


def scenario(rate_rps: float, applications: int = 1) -> Scenario:
    variants = [
        {"name": "fast", "latency_ms": [1.0 + 0.3 * size for size in range(16)], "accuracy": 0.6},
        {"name": "slow", "latency_ms": [4.0 + 1.2 * size for size in range(16)], "accuracy": 0.8},
    ]
    rows = [
        {"name": f"app-{place}", "slo_ms": 30.0, "variants": variants}
        for place in range(applications)
    ]
    return read_scenario(
        {
            "backends": 2,
            "rate_rps": rate_rps,
            "duration_s": 16_000 / rate_rps,
            "warmup_s": WARM / rate_rps,
            "execution": {"jitter": 0.02},
            "applications": rows,
        }
    )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Promise]:
    """Promises as every 32nd request finds them."""
    found: list[Promise] = []
    on_request = LookaheadQueue.on_request

    def listen(self: LookaheadQueue, now_ns: int, request: Request) -> Sequence[int]:
        promise = (
            self.promise(self.application) if request.rid % 32 == 0 and request.rid > WARM else None
        )
        if promise is not None:
            found.append(promise)
        return on_request(self, now_ns, request)

    monkeypatch.setattr(LookaheadQueue, "on_request", listen)
    return found


@pytest.mark.parametrize(
    ("rate_rps", "applications"), [(1_600.0, 1), (3_000.0, 4), (5_000.0, 1), (5_500.0, 4)]
)
def test_promise_is_what_is_seen(rate_rps: float, applications: int, told: list[Promise]) -> None:
    chosen = scenario(rate_rps, applications)
    utility, violation = earned(chosen, Driver(chosen).run(), with_accuracy=True)
    assert len(told) > 100
    late = sum(each.violation for each in told) / len(told)
    right = sum(each.accuracy * (1.0 - each.violation) for each in told) / len(told)
    assert late == pytest.approx(violation, abs=TOLERANCE)
    assert right == pytest.approx(utility, abs=TOLERANCE)


@pytest.mark.parametrize("rate_rps", [600.0])
def test_process_alone_foretells_the_accuracy_of_one_application(rate_rps: float) -> None:
    chosen = scenario(rate_rps)
    driver = Driver(chosen)
    utility, _ = earned(chosen, driver.run(), with_accuracy=True)
    source = driver.engine.sources[0]
    assert isinstance(source, LookaheadQueue)
    assert source.table is not None
    assert source.table.foretold.accuracy == pytest.approx(utility, abs=0.02)
