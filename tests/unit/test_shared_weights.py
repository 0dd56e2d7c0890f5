"""Weights that the shape buckets of a model share: held once, for as long as any bucket of it."""

import sys
from typing import Any

import numpy as np
import pytest

from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.processes.process_options import store_options
from fermata.foundation.errors import ConfigError


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_buckets_of_a_model_share_its_weights(tmp_path: Any) -> None:
    import torch

    network = torch.nn.Sequential(torch.nn.Embedding(20_000, 4), torch.nn.Linear(4, 2))
    path = tmp_path / "net.pt"
    scripted: Any = torch.jit.script(network)
    scripted.save(str(path))
    given = {
        "name": "net",
        "slo_ms": 500,
        "input": {"dtype": "INT64", "shape": [-1]},
        "shapes": {"buckets": [4, 16]},
        "variants": [{"name": "net", "model": str(path), "batch_size_max": 4}],
    }
    known = read_config({"applications": [given], "backend": {"device": "cpu"}})
    store = ModelStore(store_options(known))
    small, large = store.load("net[4]"), store.load("net[16]")
    once = sum(each.numel() * each.element_size() for each in network.parameters())
    assert store.held_bytes() == once
    tokens = np.arange(3)
    (answer,) = small.run(small.stage([tokens]))
    (same,) = large.run(large.stage([tokens]))
    with torch.inference_mode():
        alone = network(torch.from_numpy(tokens)).numpy()
    assert answer.shape == same.shape == (3, 2)
    assert np.abs(answer - alone).max() < 1e-6
    assert np.abs(same - alone).max() < 1e-6
    measured = {name: store.measure(name, each) for name, each in (("net[4]", small),)}
    assert measured["net[4]"].p50_ns[0] > 0
    small.close()
    store.release("net[4]")
    assert store.held_bytes() == once
    store.release("net[16]")
    assert store.held_bytes() == 0


FUNCTIONS = """
import torch
from fermata.deployments.models.model import Card, TorchModel
made = []

def load(device):
    made.append("shared")
    card = Card("sums", (-1,), "float32", (1,))
    return TorchModel(card, torch.nn.Identity(), lambda batch: batch.sum(1, keepdim=True))

class Closing:
    card = Card("sums", (-1,), "float32", (1,))
    def __call__(self, batch):
        assert not hasattr(self, "closed")
        return batch.sum(1, keepdims=True)
    def close(self):
        self.closed = True

def load_closing(device):
    made.append("own")
    return Closing()
"""


@pytest.mark.parametrize(("function", "made"), [("load", 1), ("load_closing", 2)])
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_buckets_share_what_a_function_makes_unless_it_is_closed(
    function: str, made: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bucket_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bucket_functions", raising=False)
    given = {
        "name": "sums",
        "slo_ms": 500,
        "input": {"dtype": "FP32", "shape": [-1]},
        "shapes": {"buckets": [4, 16]},
        "variants": [{"name": "sums", "model": f"bucket_functions:{function}"}],
    }
    known = read_config({"applications": [given], "backend": {"device": "cpu"}})
    store = ModelStore(store_options(known))
    small = store.load("sums[4]")
    large = store.load("sums[16]")
    assert len(sys.modules["bucket_functions"].made) == made
    small.close()
    store.release("sums[4]")
    (answer,) = large.run(large.stage([np.ones(3, np.float32)]))
    assert answer.tolist() == [3.0]
    # The model stays for as long as any bucket of it.
    store.load("sums[4]")
    assert len(sys.modules["bucket_functions"].made) == 2 * made - 1


def test_a_budget_counts_shared_weights_once() -> None:
    budget = MemoryBudget(100)
    budget.take("base[32]", 80, network=7)
    budget.take("base[64]", 80, network=7)
    with pytest.raises(ConfigError, match="memory_mb"):
        budget.take("other", 30, network=8)
    # What was refused holds nothing.
    with pytest.raises(ConfigError, match="memory_mb"):
        budget.take("another", 30, network=8)
    budget.release("base[32]")
    assert budget.total() == 80
