"""Packages of compiled networks: made by a process of their own, kept, and given up."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from fermata.deployments.backend.kernels.compiler import (
    CompileOrder,
    read,
    weights_digest,
    written,
)
from fermata.deployments.backend.kernels.packages import CompilingError, PackageCompiler
from fermata.deployments.backend.models.loaders import open_network
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import ImageSpec, TensorSpec

# torch warns of this where it loads what it has exported.
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")


def save_network(folder: Path) -> ModelSpec:
    """A convolution with a batch norm, exported for batches of any size."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 5),
    ).eval()  # fmt: skip
    network[1].running_mean.normal_()
    sizes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    given = (torch.rand(4, 3, 16, 16),)
    program = torch.export.export(network, given, dynamic_shapes=sizes, strict=False)
    torch.export.save(program, folder / "network.pt2")
    return ModelSpec("small", str(folder / "network.pt2"), input_shape=(3, 16, 16))


def compiler(spec: ModelSpec, network: Any, folder: Path, ended: bool = False) -> PackageCompiler:
    order = CompileOrder(spec, "cpu", weights_digest(network), os.getpid())
    return PackageCompiler(order, folder / "packages", folder / "work", lambda: ended)


@pytest.mark.long
def test_a_network_is_compiled_for_one_size_and_kept(tmp_path: Path) -> None:
    spec = save_network(tmp_path)
    network: Any = open_network(spec, "cpu").module
    compiling = compiler(spec, network, tmp_path)
    batch = torch.rand(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    assert not compiling.has(4)
    function = compiling(network, batch[:2], 4)
    with torch.inference_mode():
        assert torch.allclose(function(batch), network(batch), atol=1e-5)
    (package,) = (tmp_path / "packages").glob("*.pt2")
    made_at = package.stat().st_mtime_ns
    # Another process would find it so.
    again = compiler(spec, network, tmp_path)
    assert again.has(4)
    assert not again.has(8)
    with torch.inference_mode():
        assert torch.allclose(again(network, batch, 4)(batch), network(batch), atol=1e-5)
    assert package.stat().st_mtime_ns == made_at


def test_a_network_with_other_weights_has_other_packages(tmp_path: Path) -> None:
    one, other = nn.Linear(4, 3), nn.Linear(4, 3)
    other.load_state_dict(one.state_dict())
    assert weights_digest(one) == weights_digest(other)
    with torch.no_grad():
        other.weight[0, 0] += 1e-6
    assert weights_digest(one) != weights_digest(other)
    with torch.no_grad():
        one.weight.data = one.weight.data.t().contiguous().t()
    other.load_state_dict(one.state_dict())
    # Their layout makes no difference.
    assert weights_digest(one) == weights_digest(other)


def test_the_line_that_tells_an_error_is_told(tmp_path: Path) -> None:
    spec = save_network(tmp_path)
    network: Any = open_network(spec, "cpu").module
    compiling = compiler(spec, nn.Linear(4, 3), tmp_path)
    with pytest.raises(CompilingError, match="weights are others") as raised:
        compiling(network, torch.rand(1, 3, 16, 16), 2)
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "packages").glob("*.pt2")) == []


def test_a_compiler_ends_with_the_model_that_it_works_for(tmp_path: Path) -> None:
    spec = save_network(tmp_path)
    network: Any = open_network(spec, "cpu").module
    compiling = compiler(spec, network, tmp_path, ended=True)
    with pytest.raises(CompilingError, match="unloaded"):
        compiling(network, torch.rand(1, 3, 16, 16), 2)


def test_what_cannot_be_exported_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    spec = ModelSpec("small", "no such file.pt")
    script: Any = torch.jit
    with pytest.warns(DeprecationWarning, match="jit"):
        scripted = script.script(nn.Linear(4, 3))
    with pytest.raises(CompilingError, match="TorchScript"):
        compiler(spec, scripted, tmp_path)(scripted, torch.rand(1, 4), 2)
    turned = torch.rand(3, 4, 5).transpose(1, 2)
    with pytest.raises(CompilingError, match="laid out"):
        compiler(spec, nn.Linear(4, 3), tmp_path)(nn.Linear(4, 3), turned, 2)
    assert not (tmp_path / "work").exists()


def test_an_order_is_read_as_it_was_written() -> None:
    spec = ModelSpec(
        "v",
        "torchvision:resnet50",
        64,
        (3, 224, 224),
        "UINT8",
        frames=ImageSpec(224, 224, fit="crop"),
        inputs=(TensorSpec("x", "FP32", (-1, 4)),),
        precision="bf16",
    )
    order = CompileOrder(
        spec, "cuda", "abc", 7, (64, 3, 224, 224), "float16", True, Path("/a/64.pt2")
    )
    assert read(written(order)) == order
