"""What a GPU benchmark serves: seeded networks, their run times and their offline answers."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fermata.clients.frames import encode_jpeg
from fermata.deployments.backend.loaders import MemoryBudget, load_runner
from fermata.deployments.models.network import IMAGENET_MEAN, IMAGENET_STD
from fermata.deployments.models.picture_decoding import decode, fit, write
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import ImageSpec

SHAPE = (3, 224, 224)
FRAME = (360, 640, 3)
RUNS = 25
CALIBRATION = 64
PIXELS_MAX = 10_000_000


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
    folder: Path, models: Sequence[str], batch_size_max: int, images: int
) -> tuple[dict[str, list[float]], Offline]:
    """Run times of each model in ms by batch size, and what the first one answers."""
    import torch

    torch.hub.set_dir(str(folder / "hub"))
    (folder / "hub/checkpoints").mkdir(parents=True)
    networks = {model: _seeded(torch, folder, model) for model in models}
    latency_ms = {model: _run_times(model, batch_size_max) for model in models}
    network = networks[models[0]]
    given = np.concatenate([pixels(1, seed) for seed in range(images)])
    decoded = np.stack([_decoded(frames(1, seed)[0]) for seed in range(images)])
    exact = [_scores(torch, network, each) for each in (given, decoded)]
    network.half()
    half = [_scores(torch, network, each) for each in (given, decoded)]
    return latency_ms, Offline((exact[0], half[0]), (exact[1], half[1]))


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


def _scores(torch: Any, network: Any, given: Any) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    with torch.inference_mode():
        batch = _normalised(torch, given).to(next(network.parameters()).dtype)
        # One at a time, as they are asked: other batch sizes have other kernels, which round
        # otherwise in half precision.
        rows = [network(batch[index : index + 1]) for index in range(len(batch))]
        return torch.cat(rows).float().cpu().numpy()


def _decoded(frame: Any) -> Any:
    """As a frontend reads a JPEG, for a model that takes bytes."""
    spec = ImageSpec(SHAPE[1], SHAPE[2], IMAGENET_MEAN, IMAGENET_STD)
    out = np.empty(SHAPE, np.uint8)
    write(fit(decode(encode_jpeg(frame), PIXELS_MAX), spec), spec, out)
    return out


def _run_times(model: str, batch_size_max: int) -> list[float]:
    """Medians by batch size, as a backend runs them: padded to the next captured size."""
    spec = ModelSpec(model, f"torchvision:{model}", batch_size_max, SHAPE, "UINT8")
    runner: Any = load_runner(spec, "cuda", MemoryBudget())
    table: list[float] = []
    for size in runner.sizes:
        items = list(pixels(size, seed=size))
        taken: list[int] = []
        for _ in range(RUNS):
            staged = runner.stage(items)
            staged.there.synchronize()
            from_ns = time.perf_counter_ns()
            runner.run(staged)
            taken.append(time.perf_counter_ns() - from_ns)
        median = max(sorted(taken)[RUNS // 2] / 1e6, table[-1] if table else 0.0)
        table += [median] * (size - len(table))
    runner.close()
    return table
