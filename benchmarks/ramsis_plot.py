"""Draws accuracy against load of every policy, beside the fluid bound."""

import argparse
from pathlib import Path

import matplotlib

from benchmarks.ramsis_data import DEFAULT_FOLDER, Task, load_task
from benchmarks.ramsis_rows import Setting, outcome, percent
from fermata.simulator.sustained_load import sustained_rps

matplotlib.use("Agg")
from matplotlib import pyplot as plt

LOADS = tuple(range(400, 3601, 400))
VIOLATION_MAX = 5.0
"""Percent; as the paper's figures, points with more are left out."""


def curves(front: Task, seconds: float) -> dict[str, list[tuple[int, float]]]:
    """(load, accuracy) of each policy, where it meets the deadlines."""
    setting = Setting(front)
    start = setting.under("jellyfish-plus", late=True, rate_rps=1000)
    options: dict[str, dict[str, object]] = {
        "ramsis": {},
        "jellyfish-plus": {},
        "model-switching": {"sustained_rps": sustained_rps(start, 4000.0)},
    }
    found: dict[str, list[tuple[int, float]]] = {"fluid bound": [], "central-queue": []}
    for rate_rps in LOADS:
        found["fluid bound"].append((rate_rps, setting.fluid_bound(rate_rps)))
        mine = setting.under("central-queue", rate_rps=rate_rps, duration_s=seconds, warmup_s=3)
        accuracy, violation = percent(outcome(mine))
        if violation < VIOLATION_MAX:
            found["central-queue"].append((rate_rps, accuracy))
        for policy, given in options.items():
            one = setting.under(
                policy,
                late=True,
                rate_rps=rate_rps,
                duration_s=seconds,
                policy_options={"load_rps": rate_rps, **given},
            )
            accuracy, violation = percent(outcome(one))
            if violation < VIOLATION_MAX:
                found.setdefault(policy, []).append((rate_rps, accuracy))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER, help="as benchmarks.ramsis")
    parser.add_argument("--seconds", type=float, default=10.0, help="simulated at each load")
    parser.add_argument("--out", type=Path, default=Path("variants.png"))
    arguments = parser.parse_args()
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, points in curves(load_task(arguments.data, "image").front, arguments.seconds).items():
        style = "k--" if name == "fluid bound" else "o-"
        axes.plot([each[0] for each in points], [each[1] for each in points], style, label=name)
    axes.set_xlabel("load (requests per second)")
    axes.set_ylabel("accuracy of requests in time (%)")
    axes.set_title("RAMSIS' image task, 9 models, 60 workers, SLO 150 ms")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()
