"""`fermata policy rl`: train and evaluate slot routing."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fermata.commands.files.workload import (
    Backends,
    DurationS,
    LoadOptions,
    Profiles,
    RateRps,
    load_workload,
)
from fermata.commands.progress import progress_bar
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.router.policies.rl.checkpoint import LearningCurve, load_checkpoint
from fermata.simulator.learning.system import read_tiers
from fermata.simulator.learning.trained_scenario import served_by
from fermata.simulator.reports.phase_report import PhaseReport, report_phases
from fermata.simulator.run import simulate

rl = typer.Typer(help="Routing learnt by reinforcement; docs/learned.md.", no_args_is_help=True)

ScenarioPath = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO",
        help="Policy routing, a map of two phases; simulator/samples/bursts.yaml. A serving file "
        "gets its load from --process.",
    ),
]
Process = Annotated[
    str,
    typer.Option(
        help="Arrivals in place of the file's, such as '{process: map, d0: [...], d1: [...]}'."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
PlotPath = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw the learning curve as a PNG.")
]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the checkpoint goes.")]
TrainingSeed = Annotated[int, typer.Option(help="Seed for arrivals, sampling and initial weights.")]
Arrivals = Annotated[
    bool, typer.Option("--arrivals", help="Let the policy see the last slot's arrivals.")
]
Memory = Annotated[int, typer.Option(min=1, max=16, help="Slots whose beginnings the policy sees.")]
Batching = Annotated[
    bool, typer.Option("--batching", help="Let the policy set batch sizes of 1, 3 and 5.")
]
SlotMs = Annotated[float, typer.Option(min=1, help="Length of a slot.")]
Updates = Annotated[int, typer.Option(min=1, help="Policy updates; each uses about 8,000 slots.")]


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """How a training ended, as --json prints it."""

    checkpoint: str
    slots: int
    goodput: float
    violations: float
    wall_s: float
    cpu_s: float


@rl.command()
def train(
    scenario: ScenarioPath,
    out: Out,
    seed: TrainingSeed = 1,
    arrivals: Arrivals = False,
    memory: Memory = 3,
    batching: Batching = False,
    slot_ms: SlotMs = 1000,
    updates: Updates = 30,
    process: Process = "",
    rate_rps: RateRps = None,
    backends: Backends = None,
    profiles: Profiles = None,
    plot: PlotPath = None,
    as_json: AsJson = False,
) -> None:
    """Train a policy for a scenario: imitation first, then PPO.

    Needs torch (the extra `torch`); the checkpoint does not. It is written as training goes on.
    """
    try:
        from fermata.simulator.learning.ppo import Figures, Settings
        from fermata.simulator.learning.training import Lesson, Stopped
        from fermata.simulator.learning.training import train as train_policy
    except ImportError:
        raise ConfigError("training needs torch; install the extra `torch`") from None
    load = LoadOptions(rate_rps, backends, None, process, tuple(profiles or ()))
    loaded = load_workload(scenario, load)
    _check_place("--out", out)
    draw = None if plot is None else _plotter("--plot", plot)
    lesson = Lesson(
        seed, ms(slot_ms), arrivals, memory, batching, settings=Settings(updates=updates)
    )
    with progress_bar() as bar:
        task = bar.add_task("imitating", total=1.0)

        def tell(done: float, figures: Figures) -> None:
            text = f"goodput {figures.goodput:.2%}, violations {figures.violations:.2%}"
            bar.update(task, completed=done, description=text)

        try:
            trained = train_policy(loaded, lesson, tell, out)
        except Stopped as stopped:
            bar.stop()
            print(f"fermata: interrupted; {stopped}", file=sys.stderr)
            raise typer.Exit(130) from None
    if draw is not None:
        draw({f"seed {seed}": trained.checkpoint.curve})
    last = trained.curve[-1]
    if as_json:
        result = TrainingReport(
            str(out), last.slots, last.goodput, last.violations, trained.wall_s, trained.cpu_s
        )
        print(json.dumps(asdict(result)))
        return
    print(
        f"{out}: {last.slots:,} slots in {trained.wall_s:.0f} s; in training, noise included: "
        f"goodput {last.goodput:.2%}, violations {last.violations:.2%}"
    )


@rl.command()
def evaluate(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Checkpoint file written by `train`.")
    ],
    scenario: ScenarioPath,
    seed: Annotated[
        int, typer.Option(help="Seed for the arrivals; use one not used in training.")
    ] = 1001,
    process: Process = "",
    rate_rps: RateRps = None,
    backends: Backends = None,
    duration_s: DurationS = None,
    profiles: Profiles = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario with a trained policy and with deadline-aware routing, and compare.

    Both go through the scheduler that serves. The scenario may have another workload than the
    one of the training, if only it has a map or a trace.
    """
    load = LoadOptions(rate_rps, backends, duration_s, process, tuple(profiles or ()))
    loaded = replace(load_workload(scenario, load), seed=seed)
    learned = served_by(loaded, checkpoint)
    instances, trained = read_tiers(loaded), load_checkpoint(checkpoint).tiers
    if instances != trained:
        names = [variant.name for variant in loaded.applications[0].variants]
        raise ConfigError(
            f"checkpoint {checkpoint} was trained for the instances {_named(trained, names)}, "
            f"{scenario} has {_named(instances, names)}; train one for it"
        )
    results = {
        "rl": report_phases(learned, simulate(learned)),
        "routing": report_phases(loaded, simulate(loaded)),
    }
    if as_json:
        print(json.dumps({name: asdict(result) for name, result in results.items()}))
        return
    Console().print(_compared(checkpoint.name, results))


@rl.command()
def curves(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT...", help="From `train`, of several seeds.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the PNG goes.")],
) -> None:
    """Draw the learning curves of several trainings in one picture."""
    draw = _plotter("--out", out)
    draw({path.stem: load_checkpoint(path).curve for path in checkpoints})
    print(f"{out}: {len(checkpoints)} learning curves")


def _check_place(option: str, path: Path) -> None:
    """Refuse where nothing can be written, before any work is done."""
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder; give a file")


def _plotter(option: str, path: Path) -> Callable[[Mapping[str, LearningCurve]], None]:
    """A function that draws curves there; raises before any work is done where it cannot."""
    _check_place(option, path)
    try:
        from fermata.simulator.learning.curves import draw_curves
    except ImportError:
        raise ConfigError("a plot needs matplotlib; install the extra `plot`") from None
    return partial(draw_curves, path=path)


def _named(tiers: tuple[int, ...], names: Sequence[str]) -> str:
    """Instances as `heavy, heavy, light`; those of variants that do not exist by number."""
    known = dict(enumerate(names))
    return ", ".join(known.get(tier, f"variant {tier + 1}") for tier in tiers)


def _compared(title: str, results: dict[str, PhaseReport]) -> Table:
    table = Table(title=title)
    for heading in ("policy", "state", "goodput", "violations", "first variant"):
        table.add_column(heading, justify="left" if heading in ("policy", "state") else "right")
    for name, result in results.items():
        table.add_row(name, "all", f"{result.goodput:.2%}", f"{result.violations:.3%}", "")
        for state in result.states:
            table.add_row(
                "",
                f"{state.rps:g} req/s",
                f"{state.goodput:.2%}",
                f"{state.violations:.3%}",
                f"{state.first_variant:.1%}",
            )
    return table
