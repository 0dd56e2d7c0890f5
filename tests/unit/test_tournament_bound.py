"""The bound that no policy exceeds: company that has to come, and jitter that nobody foresees."""

import numpy as np
import pytest

from fermata.foundation.units import ms
from fermata.simulator.arrivals import generate
from fermata.simulator.run import Driver
from fermata.simulator.scenario.scenario import Scenario, read_scenario
from fermata.simulator.tournament.bound import fluid_bound
from fermata.simulator.tournament.company import largest_batches
from fermata.simulator.tournament.play import earned


def company(at_ms: list[int], rows: list[int], slo_ms: int, run_ms: list[int]) -> list[int]:
    at_ns, run_ns = np.array([ms(each) for each in at_ms]), [ms(each) for each in run_ms]
    return [int(each) for each in largest_batches(at_ns, np.array(rows), ms(slo_ms), run_ns)]


def test_a_batch_needs_requests_that_come_before_it_would_be_late() -> None:
    run_ms = [6, 7, 8]
    # A batch of two runs for 7 of 10 ms, so that both come within 3.
    assert company([0, 3, 10, 14], [1, 1, 1, 1], 10, run_ms) == [2, 2, 1, 1]
    # A batch of three leaves 2.
    assert company([0, 1, 2, 4], [1, 1, 1, 1], 10, run_ms) == [3, 3, 3, 2]
    assert company([0, 1, 3, 4], [1, 1, 1, 1], 10, run_ms) == [2, 2, 2, 2]
    # Rows of one request come together.
    assert company([0, 9], [3, 2], 8, run_ms) == [3, 2]
    assert company([0, 9], [1, 1], 5, run_ms) == [0, 0]


def lonely(jitter: float = 0.0, slo_ms: float = 10.0, rate_rps: float = 400.0) -> Scenario:
    """An application on one backend, whose batches take 6 ms and hardly more for each request."""
    return read_scenario(
        {
            "seed": 1,
            "duration_s": 20,
            "warmup_s": 1,
            "backends": 1,
            "rate_rps": rate_rps,
            "execution": {"jitter": jitter},
            "applications": [
                {
                    "name": "a",
                    "slo_ms": slo_ms,
                    "variants": [{"name": "v", "alpha_ms": 0.01, "beta_ms": 6}],
                }
            ],
        }
    )


def test_the_bound_knows_that_company_has_to_come() -> None:
    scenario = lonely(slo_ms=6.6)
    arrivals = generate(scenario)
    good, _ = earned(scenario, Driver(scenario, arrivals=arrivals).run(), False)
    # There are 166 batches a second, and 0.6 ms bring company to one request in three. A bound
    # that had all of them in full batches would be 1.
    assert good <= fluid_bound(scenario, arrivals, False) < 0.7
    # With all the time in the world batches are full.
    patient = lonely(slo_ms=1000.0)
    assert fluid_bound(patient, generate(patient), False) == pytest.approx(1.0)


def test_the_bound_knows_that_jitter_cannot_be_foreseen() -> None:
    bounds = []
    for jitter in (0.0, 0.05, 0.5):
        scenario = lonely(jitter, 6.6, 20.0)
        arrivals = generate(scenario)
        good, _ = earned(scenario, Driver(scenario, arrivals=arrivals).run(), False)
        bounds.append(fluid_bound(scenario, arrivals, False))
        # Of 400 requests, by chance.
        assert good <= bounds[-1] + 0.05
    # A batch has a tenth of its time to spare: two deviations, or a fifth of one.
    assert bounds == pytest.approx([1.0, 0.954, 0.159], abs=0.01)
