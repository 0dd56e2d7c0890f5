"""What a GPU benchmark serves: seeded networks, their run times and their offline answers."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fermata.clients.frames import encode_jpeg
from fermata.deployments.backend.execution.cuda.captured import PLAIN
from fermata.deployments.backend.execution.runners.runner import innermost
from fermata.deployments.backend.kernels.background import BackgroundTuning
from fermata.deployments.backend.kernels.choice import Choice
from fermata.deployments.backend.kernels.tuning import KernelTuner, TuningError
from fermata.deployments.backend.models.loaders import load_runner
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.processes.process_options import store_options
from fermata.deployments.models.cache import cache_folder
from fermata.deployments.models.network import IMAGENET_MEAN, IMAGENET_STD
from fermata.deployments.models.pictures.decoding import decode, fit, write
from fermata.deployments.specs.served_model import ImageSpec
from fermata.foundation.errors import ConfigError, ServingError
from fermata.profiles.devices import Cuda

SHAPE = (3, 224, 224)
FRAME = (360, 640, 3)
CACHE = "cache"
"""Folder of kernels and run times, beside the weights."""
CALIBRATION = 64
COMPILERS = 8
"""Packages that are made at a time, before anything is measured."""
PIXELS_MAX = 10_000_000


def need_gpu() -> None:
    """ConfigError where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("torch finds no GPU here: run it on a box with one (docs/gpu.md)")


@dataclass(frozen=True, slots=True)
class Offline:
    """Scores of the first model straight from torch, in 32 and in 16 bits."""

    raw: tuple[Any, Any]
    encoded: tuple[Any, Any]


def frames(count: int, seed: int) -> list[Any]:
    """Pictures that are smooth, as photographs are."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        coarse = rng.integers(0, 256, (9, 16, 3), np.uint8)
        made.append(np.ascontiguousarray(coarse.repeat(40, axis=0).repeat(40, axis=1)))
    return made


def pixels(count: int, seed: int) -> Any:
    """The same as a model's input: count x 3 x 224 x 224 bytes."""
    cut = [frame[:224, :224].transpose(2, 0, 1) for frame in frames(count, seed)]
    return np.ascontiguousarray(np.stack(cut))


def prepare(
    folder: Path,
    models: Sequence[str],
    config: dict[str, Any],
    images: int,
    sizes: Sequence[int] = (),
) -> tuple[dict[str, Choice], Offline]:
    """The kernels that serve each model, kept where the server looks, and offline answers.

    Networks are compiled for these `sizes` too, which takes minutes for many.
    """
    import torch

    networks = seed(folder, models)
    cache = cache_folder({"XDG_CACHE_HOME": os.fspath(folder / CACHE)})
    choices = choose_kernels(config, cache, sizes)
    network = networks[models[0]]
    given = np.concatenate([pixels(1, seed) for seed in range(images)])
    decoded = np.stack([_decoded(frames(1, seed)[0]) for seed in range(images)])
    exact = [scores(torch, network, each) for each in (given, decoded)]
    network.half()
    half = [scores(torch, network, each) for each in (given, decoded)]
    return choices, Offline((exact[0], half[0]), (exact[1], half[1]))


def seed(folder: Path, models: Sequence[str]) -> dict[str, Any]:
    """Networks with random weights, kept where the server looks for trained ones."""
    import torch

    torch.hub.set_dir(str(folder / "hub"))
    # A compiler looks for them, too.
    os.environ["TORCH_HOME"] = os.fspath(folder)
    (folder / "hub/checkpoints").mkdir(parents=True)
    return {model: _seeded(torch, folder, model) for model in models}


def seed_files(folder: Path, models: Sequence[str]) -> None:
    """The same, for a process that keeps none of them."""
    seed(folder, models)


def choose_kernels(
    config: dict[str, Any], cache: Path, sizes: Sequence[int] = ()
) -> dict[str, Choice]:
    """By model, with the run times of every way; those of `compiled` at these sizes alone."""
    found: dict[str, Choice] = {}
    tuning = BackgroundTuning(cache, Cuda().name, compiles=bool(sizes))
    specs = store_options(read_config(config)).specs
    runners = {spec: load_runner(spec, "cuda", MemoryBudget()) for spec in specs}
    tuners = {spec: tuning.tuner(spec, innermost(each)) for spec, each in runners.items()}
    _compile_at_once(list(tuners.values()), sizes)
    for spec, tuner in tuners.items():
        name = spec.model.partition(":")[2]
        try:
            found[name] = _chosen(tuner, sizes)
            tuning.keep(spec, found[name])
        except TuningError:
            # It is served as it is.
            found[name] = Choice({}, {PLAIN: {}, **tuner.times_ns})
        runners[spec].close()
    return found


def _chosen(tuner: KernelTuner, sizes: Sequence[int]) -> Choice:
    tuner.begin()
    tuner.left = {way: list(sizes) for way in tuner.left}
    while tuner.build_next():
        pass
    return tuner.finish()


def _compile_at_once(tuners: Sequence[KernelTuner], sizes: Sequence[int]) -> None:
    """Make packages of all models, which a server would make one after the other."""

    def make(tuner: KernelTuner, size: int) -> None:
        for build in tuner.sized.values():
            # The tuner meets the same error, and tells it.
            with suppress(ServingError):
                build(tuner.runner.model.module, taken[tuner], size)

    taken: dict[KernelTuner, Any] = {}
    for tuner in tuners:
        with tuner.runner.on_stream(tuner.stream):
            taken[tuner] = tuner.taken(tuner.runner.sample(1))
    with ThreadPoolExecutor(COMPILERS) as pool:
        for each in [pool.submit(make, tuner, size) for tuner in tuners for size in sizes]:
            each.result()


def _seeded(torch: Any, folder: Path, name: str) -> Any:
    """A random network whose statistics fit its weights, kept where the server will look."""
    from torchvision import models

    torch.manual_seed(0)
    network = models.get_model(name).cuda()
    batch = _normalised(torch, pixels(CALIBRATION, seed=1))
    for each in network.modules():
        if isinstance(each, torch.nn.BatchNorm2d):
            each.momentum = None
    with torch.no_grad():
        network.train()(batch)
        # Without training all classes are about as likely: spread them.
        last = [each for each in network.modules() if isinstance(each, torch.nn.Linear)][-1]
        spread = network.eval()(batch).std()
        last.weight.mul_(3 / spread)
    file = models.get_model_weights(name).DEFAULT.url.rpartition("/")[2]
    torch.save(network.state_dict(), folder / "hub/checkpoints" / file)
    return network


def _normalised(torch: Any, given: Any) -> Any:
    mean = torch.tensor(IMAGENET_MEAN).reshape(3, 1, 1)
    std = torch.tensor(IMAGENET_STD).reshape(3, 1, 1)
    return ((torch.from_numpy(given) / 255 - mean) / std).cuda()


def scores(torch: Any, network: Any, given: Any) -> Any:
    """Scores that a network gives on its own, one input at a time."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    with torch.inference_mode():
        batch = _normalised(torch, given).to(next(network.parameters()).dtype)
        # One at a time, as they are asked: other batch sizes have other kernels, which round
        # otherwise in half precision.
        rows = [network(batch[index : index + 1]) for index in range(len(batch))]
        return torch.cat(rows).float().cpu().numpy()


def _decoded(frame: Any) -> Any:
    return fitted(encode_jpeg(frame))


def fitted(jpeg: bytes) -> Any:
    """As a frontend reads a JPEG, for a model that takes bytes."""
    spec = ImageSpec(SHAPE[1], SHAPE[2], IMAGENET_MEAN, IMAGENET_STD)
    out = np.empty(SHAPE, np.uint8)
    write(fit(decode(jpeg, PIXELS_MAX), spec), spec, out)
    return out
