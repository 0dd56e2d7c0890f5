"""Goodput by state, on runs written down by hand."""

import numpy as np
import pytest

from benchmarks.workloads import edge, eq12, periodic_bursts
from fermata.foundation.units import ms, seconds
from fermata.simulator.arrivals import Arrivals, generate
from fermata.simulator.reports.phase_report import phase_shares, report_phases
from fermata.simulator.run import DROPPED, RunLog


def test_both_states_of_eq_12_send_half_of_the_requests() -> None:
    for reading in ("text", "table"):
        shares = phase_shares(edge(arrivals=eq12(reading)).arrivals)
        assert shares == pytest.approx([0.5, 0.5])
    assert sum(phase_shares(edge(arrivals=periodic_bursts()).arrivals)[:18]) == pytest.approx(0.5)


def test_arrivals_know_their_phase() -> None:
    mapped = generate(edge(arrivals=eq12("text"), duration_s=2000, seed=3))
    gap_s = np.diff(mapped.at_ns) / 1e9
    steady = mapped.phase[1:] == mapped.phase[:-1]
    for phase, rps in ((0, 180), (1, 10)):
        gaps = gap_s[steady & (mapped.phase[1:] == phase)]
        assert 1 / gaps.mean() == pytest.approx(rps, rel=0.05)
    traced = generate(edge(arrivals=periodic_bursts(), duration_s=530, warmup_s=5))
    in_burst = traced.at_ns[traced.phase == 18]
    assert in_burst.min() >= seconds(5 + 500)
    assert (traced.phase[traced.at_ns < seconds(5)] == 0).all()


def test_states_count_by_their_share_in_the_long_run() -> None:
    scenario = edge(arrivals=eq12("text"), warmup_s=0)
    at_ns = np.array([0, 1, 2, 3, 4, 5], np.int64)
    zeros = np.zeros(6, np.int64)
    # Five requests in the burst: one dropped, one late, three answered by light; one by heavy.
    phase = np.array([0, 0, 0, 0, 0, 1], np.int64)
    arrivals = Arrivals(at_ns, zeros, zeros, zeros + ms(300), zeros, phase, {})
    end_ns = np.array([DROPPED, ms(301), ms(1), ms(1), ms(1), ms(1)], np.int64)
    variant = np.array([0, 0, 1, 1, 1, 0], np.int64)
    log = RunLog(
        arrivals,
        start_ns=zeros,
        end_ns=end_ns,
        variant=variant,
        batch=zeros,
        reasons={0: "full"},
        batches=[],
        accuracy=[0.8, 0.6],
        first_variant=[0],
        answers={},
        contents=None,
        wall_s=0.0,
        cpu_s=0.0,
    )
    result = report_phases(scenario, log)
    burst, normal = result.states
    assert (burst.rps, burst.requests, burst.violations) == (180, 5, 0.4)
    assert burst.goodput == pytest.approx(3 / 5 * 0.6)
    assert (normal.goodput, normal.first_variant) == (0.8, 1.0)
    assert result.goodput == pytest.approx((0.36 + 0.8) / 2)
    assert result.violations == pytest.approx(0.2)
