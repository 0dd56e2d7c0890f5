"""A policy from a scenario: warm start, training, and the checkpoint that comes of it."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from fermata.foundation.units import SECOND
from fermata.router.policies.rl.checkpoint import Checkpoint, save_checkpoint
from fermata.router.policies.rl.observation import width
from fermata.simulator.learning.actor_critic import Actor
from fermata.simulator.learning.environment import Environment
from fermata.simulator.learning.imitation import imitate
from fermata.simulator.learning.ppo import Figures, Learner, Settings
from fermata.simulator.learning.system import TrainingSystem, read_system
from fermata.simulator.learning.teacher import Teacher
from fermata.simulator.scenario.scenario import Scenario

Progress = Callable[[float, Figures], None]


@dataclass(frozen=True, slots=True)
class Lesson:
    """The policy to train, and with what effort."""

    seed: int = 1
    slot_ns: int = SECOND
    with_arrivals: bool = False
    """The policy also sees how many requests the last slot brought."""
    memory: int = 3
    """Slots whose beginnings the policy sees."""
    batching: bool = False
    even: bool | None = None
    """Draw requests to instances evenly, not at random. Where it is not said: if the policy sees
    the arrivals or earlier slots. Queues are smoother then, and one look at them tells less of a
    burst."""
    settings: Settings = field(default_factory=Settings)

    @property
    def draws_evenly(self) -> bool:
        if self.even is not None:
            return self.even
        return self.with_arrivals or self.memory > 1


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """A policy and how it got there."""

    checkpoint: Checkpoint
    curve: tuple[Figures, ...]
    wall_s: float
    cpu_s: float


class Stopped(KeyboardInterrupt):
    """Training was interrupted; says what there is of it."""


def train(
    scenario: Scenario,
    lesson: Lesson,
    progress: Progress | None = None,
    path: Path | None = None,
) -> TrainedPolicy:
    """Train a policy for a scenario; the same lesson gives the same policy. With a path, a
    checkpoint is kept there from the warm start on, so that little is lost when it is stopped."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    system = read_system(scenario)
    # Networks as small as these gain nothing from threads, and sums come out the same everywhere.
    torch.set_num_threads(1)
    torch.manual_seed(lesson.seed)
    learner = _learner(system, lesson)
    curve: list[Figures] = []
    kept: Checkpoint | None = None
    try:
        teacher = Teacher(system, lesson.slot_ns, lesson.batching)
        imitate(learner, teacher, lesson.settings.imitation_rounds)
        kept = _keep(_checkpoint(learner, system, lesson, curve), path)
        for number, figures in enumerate(learner.train()):
            curve.append(figures)
            kept = _keep(_checkpoint(learner, system, lesson, curve), path)
            if progress is not None:
                progress((number + 1) / lesson.settings.updates, figures)
    except KeyboardInterrupt:
        if kept is None or path is None:
            raise Stopped("there is no policy yet") from None
        raise Stopped(f"{path} holds the policy of {kept.training['slots']:,} slots") from None
    return TrainedPolicy(
        kept,
        tuple(curve),
        time.perf_counter() - wall_s,
        time.process_time() - cpu_s,
    )


def _keep(checkpoint: Checkpoint, path: Path | None) -> Checkpoint:
    if path is not None:
        save_checkpoint(checkpoint, path)
    return checkpoint


def _learner(system: TrainingSystem, lesson: Lesson) -> Learner:
    env = Environment(
        system,
        lesson.settings.copies,
        lesson.slot_ns,
        np.random.default_rng(lesson.seed),
        batching=lesson.batching,
        with_arrivals=lesson.with_arrivals,
        even=lesson.draws_evenly,
        memory=lesson.memory,
    )
    inputs = width(len(system.tiers), env.scales)
    tiers = len(system.accuracy) if lesson.batching else 0
    actor = Actor(inputs, len(system.tiers), tiers, lesson.settings.hidden)
    return Learner(env, actor, lesson.settings)


def _checkpoint(
    learner: Learner, system: TrainingSystem, lesson: Lesson, curve: list[Figures]
) -> Checkpoint:
    return Checkpoint(
        network=learner.actor.export(),
        tiers=system.tiers,
        scales=learner.env.scales,
        slot_ns=lesson.slot_ns,
        low=learner.low,
        high=learner.high,
        batching=lesson.batching,
        even=lesson.draws_evenly,
        variants=system.variants,
        rates_rps=system.rates_rps,
        training={
            "seed": lesson.seed,
            "slots": learner.slots,
            "settings": asdict(lesson.settings),
            "curve": [asdict(figures) for figures in curve],
        },
    )
