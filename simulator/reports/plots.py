"""Pictures of a run and of a goodput search, as PNG files."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from fermata.foundation.units import SECOND
from fermata.simulator.goodput import BAD_RATE_MAX
from fermata.simulator.reports.report import RunReport
from fermata.simulator.run import DROPPED, RunLog
from fermata.simulator.scenario.scenario import Scenario

STRIP_NS = 200_000_000
"""Length of the strip of batches that is drawn."""
BACKENDS_SHOWN = 16


def draw_run(scenario: Scenario, log: RunLog, path: Path) -> None:
    """Rates over time, the distribution of latency, batch sizes, and a strip of batches."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    _draw_rates(axes[0, 0], scenario, log)
    _draw_latency(axes[0, 1], scenario, log)
    sizes = [size for _, _, _, size in log.batches]
    axes[1, 0].hist(sizes, bins=np.arange(0.5, max(sizes, default=1) + 1.5), color="tab:blue")
    axes[1, 0].set(title="batch sizes", xlabel="requests in a batch", ylabel="batches")
    _draw_strip(axes[1, 1], scenario, log)
    figure.suptitle(f"{scenario.policy}, {scenario.backends} backends")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_rates(axis: Axes, scenario: Scenario, log: RunLog) -> None:
    start_s = scenario.warmup_ns / SECOND
    at_s = log.arrivals.at_ns / SECOND - start_s
    good = (log.end_ns != DROPPED) & (log.end_ns <= log.arrivals.at_ns + log.arrivals.slo_ns)
    end_s = scenario.duration_ns / SECOND
    edges = np.linspace(-start_s, end_s, 121)
    width_s = edges[1] - edges[0]
    for mask, label, color in ((good, "good", "tab:green"), (~good, "bad", "tab:red")):
        counts, _ = np.histogram(at_s[mask], edges)
        axis.step(edges[:-1], counts / width_s, where="post", label=label, color=color)
    axis.axvspan(-start_s, 0, color="0.9")
    axis.set(title="requests by arrival", xlabel="s (warm-up shaded)", ylabel="req/s")
    axis.legend()


def _draw_latency(axis: Axes, scenario: Scenario, log: RunLog) -> None:
    answered = (log.arrivals.at_ns >= scenario.warmup_ns) & (log.end_ns != DROPPED)
    for index, application in enumerate(scenario.applications[:10]):
        mine = answered & (log.arrivals.application == index)
        latency_ms = np.sort((log.end_ns - log.arrivals.at_ns)[mine]) / 1e6
        if len(latency_ms):
            share = np.arange(1, len(latency_ms) + 1) / len(latency_ms)
            axis.plot(latency_ms, share, label=application.name)
    axis.set(title="latency of answered requests", xlabel="ms", ylabel="share")
    axis.legend(fontsize="small")


def _draw_strip(axis: Axes, scenario: Scenario, log: RunLog) -> None:
    begin_ns = scenario.warmup_ns
    largest = max((size for *_, size in log.batches), default=1)
    for backend, started_ns, ended_ns, size in log.batches:
        if backend < BACKENDS_SHOWN and begin_ns <= started_ns < begin_ns + STRIP_NS:
            left_ms, width_ms = (started_ns - begin_ns) / 1e6, (ended_ns - started_ns) / 1e6
            color = plt.get_cmap("viridis")(size / largest)
            axis.broken_barh([(left_ms, width_ms)], (backend - 0.4, 0.8), facecolors=color)
    axis.set(title="batches; brighter is larger", xlabel="ms", ylabel="backend")


def draw_search(results: Sequence[tuple[float, RunReport]], goodput_rps: float, path: Path) -> None:
    """Bad rate over offered rate for every run of a search."""
    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    ordered = sorted(results, key=lambda each: each[0])
    rates = [rate for rate, _ in ordered]
    axis.plot(rates, [100 * each.worst_bad_rate for _, each in ordered], "o-", label="worst")
    axis.plot(rates, [100 * each.bad_rate for _, each in ordered], "o-", label="all together")
    axis.axhline(100 * BAD_RATE_MAX, color="0.5", linestyle="--")
    axis.axvline(goodput_rps, color="0.5", linestyle="--")
    axis.set(xlabel="offered req/s", ylabel="bad requests in %", yscale="symlog")
    axis.set_title(f"goodput {goodput_rps:,.0f} req/s")
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
