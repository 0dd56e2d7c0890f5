"""Embeddings: the features by which a SneakPeek model compares samples."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fermata.deployments.sneakpeek.early_layers import early_layers, is_of_onnx
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.foundation.user_code import import_function

Array = NDArray[Any]
Floats = NDArray[np.float32]

RAW = "raw"
PICTURES = "imagenet"
TEXT = "text:vectors"
FORMS = "raw, imagenet:lite0[@SIDE[/BLOCKS]], text:vectors, FILE.onnx:TENSOR or module:function"
BATCH = 32
"""Samples embedded at a time on a CPU: more take memory and are no faster."""
GPU_BATCH = 256


@dataclass(frozen=True, slots=True)
class Embedding:
    """A function from samples [n, ...] to features [n, features]."""

    name: str
    embed: Callable[[Array], Array]
    batch: int = BATCH
    """Samples that it takes at a time."""

    def __call__(self, samples: Any) -> Floats:
        """Features of an array, or of a tensor on its device where it `takes_tensors`."""
        parts = [
            self._part(samples[start : start + self.batch])
            for start in range(0, len(samples), self.batch)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _part(self, samples: Any) -> Floats:
        found = np.asarray(self.embed(samples))
        if found.ndim < 2 or len(found) != len(samples) or found.dtype.kind not in "fiub":
            rule = f"must give numbers [{len(samples)}, features], not {found.dtype.name}"
            refuse("embedding", self.name, f"{rule} {list(found.shape)}")
        return np.ascontiguousarray(found.reshape(len(found), -1), np.float32)


@cache
def open_embedding(name: str, device: str = "cpu") -> Embedding:
    """The embedding of this name; its weights are read once in a process."""
    if name == RAW:
        return Embedding(name, _flat, 4 * GPU_BATCH)
    batch = BATCH if device == "cpu" else GPU_BATCH
    family, _, rest = name.partition(":")
    if family == PICTURES:
        return Embedding(name, _pictures(name, rest, device), batch)
    if name == TEXT:
        return Embedding(name, _sentences(device), batch)
    if is_of_onnx(name):
        return Embedding(name, early_layers(name), batch)
    if not family or not rest:
        refuse("embedding", name, f"must be {FORMS}")
    try:
        found = import_function(name)
    except (ImportError, AttributeError) as error:
        refuse("embedding", name, f"cannot be imported ({error}); it must be {FORMS}")
    if not callable(found):
        refuse("embedding", name, "is no function; it must take samples and give their features")
    return Embedding(name, found, batch)


def takes_tensors(embedding: str) -> bool:
    """Whether it takes tensors on its device too, so that these are not copied to and fro."""
    return embedding.partition(":")[0] == PICTURES


def runs_in_torch(embedding: str) -> bool:
    """Whether a GPU embeds faster than a CPU, as far as is known."""
    return takes_tensors(embedding) or embedding == TEXT


def sees(embedding: str, built: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a model of samples of the `built` shape can look at an input of this one."""
    if embedding.partition(":")[0] == PICTURES:
        return len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))
    if embedding == TEXT:
        return len(shape) == 1
    return int(np.prod(shape)) == int(np.prod(built))


def use_one_core() -> None:
    """Have torch, where it is loaded, embed on the calling thread alone."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _flat(samples: Array) -> Array:
    return samples.reshape(len(samples), -1)


def _pictures(name: str, rest: str, device: str) -> Callable[[Array], Array]:
    """Features of EfficientNet-lite: all of it, or its first blocks."""
    from fermata.deployments.models.imagenet import load_features

    sized, _, blocks = rest.partition("/")
    variant, _, side = sized.partition("@")
    try:
        return load_features(variant, int(side) if side else None, int(blocks or 0), device)
    except ValueError:
        refuse("embedding", name, "must be imagenet:lite0[@SIDE[/BLOCKS]] in whole numbers")
    except ImportError as error:
        raise ConfigError(f"embedding {name} needs {error.name}; run make models") from None


def _sentences(device: str) -> Callable[[Array], Array]:
    """Sentence vectors of MiniLM from token ids."""
    try:
        import torch

        from fermata.deployments.models.minilm import embed, load_weights
    except ImportError as error:
        raise ConfigError(f"embedding {TEXT} needs {error.name}; run make models") from None
    weights = load_weights().to(device)

    def vectors(tokens: Array) -> Array:
        with torch.inference_mode():
            ids = torch.from_numpy(tokens.astype(np.int64, copy=False)).to(device)
            found: Array = embed(weights, ids).float().cpu().numpy()
            return found

    return vectors
