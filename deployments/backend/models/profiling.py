"""Run times of a loaded model, measured on its own runner once on each machine."""

import hashlib
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fermata.deployments.backend.execution.cuda.ladder import powers_of_two
from fermata.deployments.backend.execution.out_of_memory import (
    drop_references,
    is_out_of_memory,
    release_memory,
)
from fermata.deployments.backend.execution.runners.named import sample_items
from fermata.deployments.backend.execution.runners.runner import Runner, innermost
from fermata.deployments.backend.execution.tensors import Item, held_as
from fermata.deployments.models.cache import cached
from fermata.deployments.models.catalog import FAMILIES
from fermata.deployments.models.model import Card
from fermata.deployments.models.sizes import split_size
from fermata.deployments.specs.backend import Measure, ModelSpec
from fermata.foundation.errors import ConfigError
from fermata.profiles.devices import Cpu, Cuda
from fermata.profiles.measure import Columns, Device, MeasureEffort, measure
from fermata.profiles.profile import Profile, ms
from fermata.profiles.store import Table, load_file, save_file

EFFORT = MeasureEffort(warm_up=1, runs_min=3, runs_max=200, budget_ns=ms(300))
"""Short, since the start waits for it; the router learns the rest from batches."""
LIBRARIES = (
    "numpy",
    "torch",
    "torchvision",
    "onnxruntime",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)
SIZES_USUAL = 8
"""More sizes than these share the time that these would take."""
VERSION = 2
"""Part of the cache's key: raise it when measuring itself changes."""


def profile_runner(
    spec: ModelSpec,
    runner: Runner,
    device: str,
    threads: int,
    folder: Path,
    how: Measure = "once",
) -> Profile:
    """Run times of a warm runner; with `once`, those that `folder` keeps from the first start."""
    if how == "never":
        raise ConfigError(
            f"{spec.name} has no run times and measure=never; give it a profile, alpha_ms with "
            "beta_ms, or latency_ms"
        )
    place: Device = Cuda() if device == "cuda" else Cpu(threads)
    path = folder / f"profile-{digest_of(spec, place.name, ways_of(runner))}.json"

    def fresh() -> Profile:
        return measure_runner(spec, runner, place, time.perf_counter_ns)

    if how == "always" or not is_lasting(spec):
        return fresh()
    try:
        cached(path, lambda part: save_file(part, _table(fresh())))
        found = load_file(path).profiles[0]
        if found.batches[-1] < runner.batch_size_max:
            # Memory was short, which need not hold for the next start.
            path.unlink(missing_ok=True)
        return found
    except OSError:
        # The folder is not writable.
        return fresh()
    except ConfigError:
        path.unlink(missing_ok=True)
        return fresh()


def measure_runner(
    spec: ModelSpec,
    runner: Runner,
    device: Device,
    clock: Callable[[], int],
    effort: MeasureEffort = EFFORT,
) -> Profile:
    """The profile of a runner as it serves: same precision, same graphs, staging left out."""
    # Pictures are decoded and fitted while they are staged, which is no part of the run.
    runner = innermost(runner)
    inputs: dict[int, list[Item]] = {}

    def stage(size: int) -> object:
        if size not in inputs:
            inputs[size] = _sample_batch(spec, size)
        return runner.stage(inputs[size])

    columns: Columns | None = None
    captured: Sequence[int] = getattr(runner, "sizes", ())
    sizes = list(captured) or powers_of_two(runner.batch_size_max)
    effort = replace(
        effort, budget_ns=effort.budget_ns * SIZES_USUAL // max(SIZES_USUAL, len(sizes))
    )
    while columns is None:
        try:
            columns = measure(runner.run, stage, sizes, device, clock, effort, renew=True)
        except Exception as error:
            if len(sizes) == 1 or not is_out_of_memory(error):
                raise
            # Batches of that size would be halved.
            drop_references(error)
            sizes.pop()
            release_memory()
    card = getattr(getattr(runner, "model", None), "card", None)
    batches, p50_ns, p99_ns = columns.batches, columns.p50_ns, columns.p99_ns
    if captured:
        _, p99_ns = stepwise(batches, p99_ns)
        batches, p50_ns = stepwise(batches, p50_ns)
    return Profile(
        spec.name,
        batches=batches,
        p50_ns=p50_ns,
        p99_ns=p99_ns,
        accuracy=getattr(card, "accuracy", None),
        recall=getattr(card, "recall", ()),
        input="" if spec.inputs else _card(spec).input,
        device=device.name,
    )


def stepwise(
    batches: Sequence[int], values: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same times for runs that are padded to the next of these sizes.

    Between two of them a line would promise less than the larger one takes.
    """
    sizes: list[int] = []
    times: list[int] = []
    for size, value in zip(batches, values, strict=True):
        first = sizes[-1] + 1 if sizes else size
        for each in sorted({first, size}):
            sizes.append(each)
            times.append(value)
    return tuple(sizes), tuple(times)


def _card(spec: ModelSpec) -> Card:
    assert spec.input_shape is not None
    return Card(spec.name, spec.input_shape, held_as(spec.input_dtype or "FP32"), (-1,))


def _sample_batch(spec: ModelSpec, size: int) -> list[Item]:
    spec = spec.at_bucket()
    if spec.inputs:
        return list(sample_items(spec.inputs, size))
    return list(_card(spec).make_batch(size))


def _table(profile: Profile) -> Table:
    return Table("measured", profile.device, "at the start of a backend", (profile,))


def _is_file(spec: ModelSpec) -> bool:
    return ":" not in spec.model and _path(spec).is_file()


def _path(spec: ModelSpec) -> Path:
    return Path(split_size(spec.model)[0])


def digest_of(spec: ModelSpec, device: str, more: str = "") -> str:
    """Digest of all that changes run times: the model, its input, the device, the libraries."""
    stamp = ""
    if _is_file(spec):
        found = _path(spec).stat()
        stamp = f"{_path(spec).resolve()} {found.st_mtime_ns} {found.st_size}"
    versions = [f"{name} {_version(name)}" for name in LIBRARIES]
    text = f"{VERSION} {spec} {stamp} {device} {versions} {more}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_lasting(spec: ModelSpec) -> bool:
    """Whether the model is the same at the next start; a function may change without notice."""
    return spec.model.partition(":")[0] in FAMILIES or _is_file(spec)


def ways_of(runner: Runner) -> str:
    """The kinds of kernels that a runner's graphs have, by batch size; empty without graphs."""
    graphs = getattr(innermost(runner), "graphs", {})
    return " ".join(f"{size}:{graphs[size].way}" for size in sorted(graphs))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
