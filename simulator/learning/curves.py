"""Learning curves as a picture."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl

from fermata.router.policies.rl.checkpoint import LearningCurve

mpl.use("Agg")
import matplotlib.pyplot as plt


def draw_curves(curves: Mapping[str, LearningCurve], path: Path) -> None:
    """Goodput and violations over the slots played, a line for each curve; RL-edge Fig. 2."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, curve in curves.items():
        slots = [point["slots"] / 1000 for point in curve]
        axes[0].plot(slots, [100 * point["goodput"] for point in curve], label=name)
        axes[1].plot(slots, [100 * point["violations"] for point in curve], label=name)
    axes[0].set(title="goodput", xlabel="thousand slots", ylabel="% of the requests")
    axes[1].set(title="violations", xlabel="thousand slots", ylabel="% of the requests")
    axes[1].set_yscale("log")
    axes[0].legend()
    figure.suptitle("the policy in training, its noise included")
    figure.savefig(path, dpi=110)
    plt.close(figure)
