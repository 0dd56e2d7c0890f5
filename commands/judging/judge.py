"""Models judged on labelled samples, and detectors on the frames of a video."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from fermata.deployments.models.catalog import parse_name
from fermata.deployments.models.detectors.judging import VideoTest, read_form
from fermata.deployments.models.digits import held_out
from fermata.deployments.models.pictures.folders import LabelledFolder
from fermata.deployments.sneakpeek.store import read_data
from fermata.foundation.refusals import refuse
from fermata.profiles.detection import METRICS
from fermata.profiles.profiler import LoadedModel, ProfilerOutcome
from fermata.profiles.quality import measure_batches, measure_quality

FOLDER_BATCH = 8
Samples = tuple[NDArray[np.float32], NDArray[np.int64]]


def read_labelled(path: Path) -> Samples | LabelledFolder:
    if path.is_dir():
        return LabelledFolder(path)
    return held_out() if path == Path("digits") else read_data(path)


def read_video(
    video: str,
    reference: str,
    frames: int,
    every: int,
    metric: str,
    form: tuple[str, str, str, str],
) -> VideoTest | None:
    """The test that the options ask for; None where they ask for none."""
    if not video:
        if reference:
            refuse("reference", reference, "goes with --video; give frames to compare on")
        return None
    if not reference:
        refuse("video", video, "needs --reference: a better detector, or labels")
    if metric not in METRICS:
        refuse("metric", metric, f"must be one of {', '.join(METRICS)}")
    if not reference.endswith(".json"):
        parse_name(reference)
    return VideoTest(video, range(0, frames * every, every), metric, read_form(*form))


def judge_video(
    progress: Progress,
    outcomes: list[ProfilerOutcome],
    openers: list[Callable[[], LoadedModel]],
    test: VideoTest,
    reference: str,
    asked: Callable[[], LoadedModel],
) -> list[ProfilerOutcome]:
    """The outcomes with the accuracy of detectors, measured on the frames of a video."""
    task = progress.add_task(f"{reference}: reference", total=None)
    if not reference.endswith(".json"):
        test.ask(asked())
    judged: list[ProfilerOutcome] = []
    for outcome, opener in zip(outcomes, openers, strict=True):
        model = opener()
        if reference.endswith(".json"):
            test.read(Path(reference), model.card.labels)
        name = outcome.profile.name
        progress.update(task, description=f"{name}: judging", total=len(test.wanted))

        def tell(count: int) -> None:
            progress.update(task, completed=count)

        accuracy = test.judge(model, tell)
        judged.append(replace(outcome, profile=replace(outcome.profile, accuracy=accuracy)))
    return judged


def judge_labelled(
    progress: Progress,
    outcomes: list[ProfilerOutcome],
    openers: list[Callable[[], LoadedModel]],
    labelled: Samples | LabelledFolder,
) -> list[ProfilerOutcome]:
    """The outcomes with accuracy, recall and confusion measured on labelled samples."""
    samples = labelled[0] if isinstance(labelled, tuple) else labelled
    task = progress.add_task("judging", total=len(outcomes) * len(samples))
    judged: list[ProfilerOutcome] = []
    for number, (outcome, opener) in enumerate(zip(outcomes, openers, strict=True)):
        done = number * len(samples)
        progress.update(task, description=f"{outcome.profile.name}: judging")

        def tell(count: int, done: int = done) -> None:
            progress.update(task, completed=done + count)

        model = opener()
        if isinstance(labelled, tuple):
            found = measure_quality(model, *labelled, on_batch=tell)
        else:
            classes = max(labelled.labels(model.card)) + 1
            parts = labelled.batches(model.card, FOLDER_BATCH)
            found = measure_batches(model, parts, classes, tell)
        judged.append(replace(outcome, profile=replace(outcome.profile, **asdict(found))))
    return judged
