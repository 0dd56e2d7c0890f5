"""A changing load over time in the manner of Symphony's Fig. 14, as a PNG file."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from fermata.foundation.units import SECOND
from fermata.simulator.run import DROPPED, RunLog
from fermata.simulator.scenario.scenario import Scenario

BINS = 240


def draw_scaling(scenario: Scenario, log: RunLog, path: Path) -> None:
    """Requests good and bad by model, backends, the autoscaler's advice, and the bad rate."""
    figure, axes = plt.subplots(
        4, 1, figsize=(11, 11), sharex=True, layout="constrained", height_ratios=(2, 1, 1, 1)
    )
    _draw_requests(axes[0], axes[3], scenario, log)
    _draw_backends(axes[1], log)
    _draw_advice(axes[2], log)
    for plan in log.plans[1:]:
        axes[1].axvline(plan.at_ns / SECOND, color="0.6", linestyle=":")
    axes[3].set(xlabel="s")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_requests(rates: Axes, bad_rate: Axes, scenario: Scenario, log: RunLog) -> None:
    end_s = (scenario.warmup_ns + scenario.duration_ns) / SECOND
    edges = np.linspace(0.0, end_s, BINS + 1)
    bin_of = np.minimum((log.arrivals.at_ns / SECOND / end_s * BINS).astype(np.int64), BINS - 1)
    good = (log.end_ns != DROPPED) & (log.end_ns <= log.arrivals.at_ns + log.arrivals.slo_ns)
    models = len(scenario.applications)
    place = log.arrivals.application * BINS + bin_of
    counts = [
        np.bincount(place[mask], minlength=models * BINS).reshape(models, BINS)
        for mask in (good, ~good)
    ]
    per_s = [each / (edges[1] - edges[0]) for each in counts]
    colors = plt.get_cmap("turbo")(np.linspace(0.05, 0.95, models))
    greys = plt.get_cmap("Greys")(np.linspace(0.5, 0.95, models))
    rates.stackplot(edges[:-1], *per_s[0], *per_s[1], colors=[*colors, *greys])
    rates.set(title="requests by model; bad ones grey, on top", ylabel="req/s")
    asked = counts[0].sum(axis=0) + counts[1].sum(axis=0)
    share = 100 * counts[1].sum(axis=0) / np.maximum(asked, 1)
    bad_rate.step(edges[:-1], share, where="post", color="tab:red")
    bad_rate.axhline(1.0, color="0.5", linestyle="--")
    bad_rate.set(title="bad requests", ylabel="%", yscale="symlog")


def _draw_backends(axis: Axes, log: RunLog) -> None:
    at_s, up, busy = _by_window(log)
    axis.step(at_s, up, where="pre", label="up", color="tab:blue")
    axis.plot(at_s, busy, label="busy", color="tab:orange", linewidth=0.8)
    axis.set(title="backends", ylim=(0, None))
    axis.legend(loc="upper left")


def _by_window(log: RunLog) -> tuple[list[float], list[int], list[float]]:
    """All sub-clusters together."""
    up: dict[int, int] = {}
    busy: dict[int, float] = {}
    for each in log.windows:
        up[each.ends_at_ns] = up.get(each.ends_at_ns, 0) + each.window.up
        busy[each.ends_at_ns] = busy.get(each.ends_at_ns, 0.0) + each.window.busy
    times = sorted(up)
    return [at / SECOND for at in times], [up[at] for at in times], [busy[at] for at in times]


def _draw_advice(axis: Axes, log: RunLog) -> None:
    changes: dict[float, int] = {}
    for each in log.windows:
        at_s = each.ends_at_ns / SECOND
        changes[at_s] = changes.get(at_s, 0) + each.advice.change
    width = min(np.diff(sorted(changes)), default=1.0)
    colors = ["tab:red" if change > 0 else "tab:green" for change in changes.values()]
    axis.bar(list(changes), list(changes.values()), width=width, color=colors)
    axis.set(title="advice: backends to add (red) or release (green)")
