"""Rewritten networks compute what the plain ones do; cuDNN's functions are spelt out on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from fermata.deployments.backend.kernels.fused_convolution import FusedConvolution, reference_ops
from fermata.deployments.backend.kernels.fusing import FusedNetwork, UntraceableError, fuse

F = nn.functional
CHANNELS = 8


def settled(network: Any) -> Any:
    """The network in evaluation, with norms that do something."""
    torch.manual_seed(1)
    for each in network.modules():
        if isinstance(each, nn.BatchNorm2d) and each.running_mean is not None:
            each.running_mean.normal_()
            each.running_var.uniform_(0.5, 2)
            if each.weight is not None:
                nn.init.normal_(each.weight, 1, 0.2)
                nn.init.normal_(each.bias)
    return network.eval().requires_grad_(False)


def picture(side: int = 12, channels: int = CHANNELS) -> Any:
    torch.manual_seed(2)
    return torch.randn(2, channels, side, side)


def fused(network: Any, batch: Any, tolerance: float = 1e-5) -> FusedNetwork:
    """The rewritten network, once it was seen to compute the same, at another batch size too."""
    found = fuse(network, batch.clone(), reference_ops)
    with torch.inference_mode():
        for given in (batch, torch.cat([batch, batch[:1]])):
            wanted, got = network(given.clone()), found.module(given.clone())
            scale = wanted.abs().max()
            assert (wanted - got).abs().max() <= tolerance * scale
    return found


def counts(found: FusedNetwork) -> tuple[int, int, int]:
    return found.folded, found.with_relu, found.with_addend


def conv(*more: Any, **options: Any) -> Any:
    return nn.Conv2d(CHANNELS, CHANNELS, 3, *more, **{"padding": 1, **options})


class Written(nn.Module):  # type: ignore[misc]
    """A network whose forward pass is a function of it."""

    def __init__(self, forward: Callable[[Any, Any], Any], **modules: Any) -> None:
        super().__init__()
        self.written = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Any) -> Any:
        return self.written(self, x)


def test_resnets_are_folded_and_fused_throughout() -> None:
    models = pytest.importorskip("torchvision.models")
    for name, expected in (("resnet18", (20, 9, 8)), ("resnet50", (53, 33, 16))):
        found = fused(settled(models.get_model(name)), picture(64, 3), 1e-4)
        assert counts(found) == expected
        assert not [each for each in found.module.modules() if isinstance(each, nn.ReLU)]


@pytest.mark.parametrize("name", ["mobilenet_v3_large", "resnext50_32x4d", "densenet121", "vgg11"])
def test_other_networks_are_rewritten_where_it_is_right(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    fused(settled(models.get_model(name)), picture(64, 3), 1e-4)


RELUS: dict[str, Callable[[Any, Any], Any]] = {
    "module": lambda self, x: self.relu(self.conv(x)),
    "in place": lambda self, x: self.relu_(self.conv(x)),
    "function": lambda self, x: F.relu(self.conv(x)),
    "function in place": lambda self, x: F.relu(self.conv(x), inplace=True),
    "by position": lambda self, x: F.relu(self.conv(x), True),
    "by name": lambda self, x: F.relu(input=self.conv(x)),
    "torch": lambda self, x: torch.relu(self.conv(x)),
    "method": lambda self, x: self.conv(x).relu(),
    "method in place": lambda self, x: self.conv(x).relu_(),
}


@pytest.mark.parametrize("name", RELUS)
def test_a_relu_is_known_however_it_is_written(name: str) -> None:
    network = Written(RELUS[name], conv=conv(), relu=nn.ReLU(), relu_=nn.ReLU(inplace=True))
    assert counts(fused(settled(network), picture())) == (0, 1, 0)


def add_in_place(self: Any, x: Any) -> Any:
    y = self.conv(x)
    y += x
    return y.relu_()


SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "operator": lambda self, x: F.relu(self.conv(x) + x),
    "turned round": lambda self, x: F.relu(x + self.conv(x)),
    "in place": add_in_place,
    "torch": lambda self, x: F.relu(torch.add(self.conv(x), x)),
    "method": lambda self, x: self.conv(x).add(x).relu(),
    "method in place": lambda self, x: self.conv(x).add_(x).relu(),
    "two convolutions": lambda self, x: F.relu(self.conv(x) + self.other(x)),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_known_however_it_is_written(name: str) -> None:
    network = settled(Written(SUMS[name], conv=conv(), other=conv(bias=False)))
    assert counts(fused(network, picture())) == (0, 0, 1)


def shifted_input(self: Any, x: Any) -> Any:
    y = self.conv(x)
    x.add_(1)
    return F.relu(y + x)


def used_twice(self: Any, x: Any) -> Any:
    y = self.conv(x)
    return F.relu(y) + y


def relu_seen_elsewhere(self: Any, x: Any) -> Any:
    y = self.conv(x)
    F.relu_(y)
    return y * 2


def sum_into_addend(self: Any, x: Any) -> Any:
    row = x[:, :, :, :]
    row.add_(self.conv(x))
    return F.relu(row) + x


LEFT: dict[str, Callable[[Any, Any], Any]] = {
    "changed between": shifted_input,
    "used twice": used_twice,
    "relu seen elsewhere": relu_seen_elsewhere,
    "sum into its addend": sum_into_addend,
    "broadcast": lambda self, x: F.relu(self.conv(x) + x.mean((2, 3), keepdim=True)),
    "a number": lambda self, x: F.relu(self.conv(x) + 1),
    "scaled": lambda self, x: F.relu(torch.add(self.conv(x), x, alpha=2)),
    "a sum of one": lambda self, x: F.relu(self.conv(x) * 2 + x),
    "another activation": lambda self, x: F.hardswish(self.conv(x)),
    "a clipped one": lambda self, x: F.relu6(self.conv(x)),
    "a subtraction": lambda self, x: F.relu(self.conv(x) - x),
}


@pytest.mark.parametrize("name", LEFT)
def test_anything_else_stays_as_it_is(name: str) -> None:
    assert counts(fused(settled(Written(LEFT[name], conv=conv())), picture())) == (0, 0, 0)


def test_a_relu_in_place_of_the_input_comes_after_the_convolution() -> None:
    def forward(self: Any, x: Any) -> Any:
        y = self.conv(x)
        F.relu_(x)
        return F.relu(y) + x

    assert counts(fused(settled(Written(forward, conv=conv())), picture())) == (0, 1, 0)


def test_a_convolution_called_twice_is_fused_at_each_place() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.second(self.conv(F.relu(self.first(self.conv(x))))) + self.conv(x)

    norms = {"first": nn.BatchNorm2d(CHANNELS), "second": nn.BatchNorm2d(CHANNELS)}
    found = fused(settled(Written(forward, conv=conv(), **norms)), picture())
    assert counts(found) == (2, 1, 0)


def test_a_norm_shared_by_two_convolutions_is_folded_into_both() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.norm(self.conv(x)) + self.norm(self.other(x))

    modules = {"conv": conv(), "other": conv(bias=False), "norm": nn.BatchNorm2d(CHANNELS)}
    assert counts(fused(settled(Written(forward, **modules)), picture())) == (2, 0, 0)


def test_norms_without_a_convolution_or_statistics_stay() -> None:
    def forward(self: Any, x: Any) -> Any:
        y = self.conv(x)
        return self.alone(x) + self.batchwise(self.conv(x)) + self.seen(y) + y

    modules = {
        "alone": nn.BatchNorm2d(CHANNELS),
        "batchwise": nn.BatchNorm2d(CHANNELS, track_running_stats=False),
        "seen": nn.BatchNorm2d(CHANNELS),
    }
    assert counts(fuse_one(Written(forward, conv=conv(), **modules))) == (0, 0, 0)


def fuse_one(network: Any) -> FusedNetwork:
    return fused(settled(network), picture())


def test_a_norm_that_still_learns_stays() -> None:
    network = settled(nn.Sequential(conv(), nn.BatchNorm2d(CHANNELS)))
    network[1].train()
    assert fuse(network, picture(), reference_ops).folded == 0


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(CHANNELS, affine=False), nn.BatchNorm2d(CHANNELS, eps=0.1)]
)
def test_norms_of_every_kind_are_folded(norm: Any) -> None:
    for each in (conv(), conv(bias=False), conv(groups=4), conv(stride=2), conv(dilation=2)):
        assert fuse_one(nn.Sequential(each, norm)).folded == 1


@pytest.mark.parametrize(
    ("layer", "count"),
    [
        (conv(groups=4), 0),
        (conv(padding="same"), 0),
        (conv(padding_mode="reflect"), 0),
        (conv(stride=2, padding=0, dilation=2), 1),
        (nn.ConvTranspose2d(CHANNELS, CHANNELS, 3), 0),
    ],
)
def test_only_dense_convolutions_padded_with_zeros_are_fused(layer: Any, count: int) -> None:
    assert fuse_one(nn.Sequential(layer, nn.ReLU())).with_relu == count


class Louder(nn.Conv2d):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 3


def test_subclasses_and_modules_with_hooks_are_left() -> None:
    hooked = conv()
    hooked.register_forward_hook(lambda module, given, output: output + 1)
    weighted = torch.nn.utils.parametrizations.weight_norm(conv())
    for layer in (Louder(CHANNELS, CHANNELS, 3), hooked, weighted):
        network = nn.Sequential(layer, nn.BatchNorm2d(CHANNELS), nn.ReLU())
        assert counts(fuse_one(network)) == (0, 0, 0)


def test_the_network_itself_is_not_changed() -> None:
    network = settled(nn.Sequential(conv(), nn.BatchNorm2d(CHANNELS), nn.ReLU(inplace=True)))
    before = {name: each.clone() for name, each in network.state_dict().items()}
    assert counts(fused(network, picture())) == (1, 1, 0)
    assert all(torch.equal(each, before[name]) for name, each in network.state_dict().items())
    assert [type(each) for each in network] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]


def test_weights_keep_their_layout_and_precision() -> None:
    network = settled(nn.Sequential(conv(), nn.BatchNorm2d(CHANNELS), nn.ReLU()))
    network.to(torch.bfloat16).to(memory_format=torch.channels_last)
    found = fuse(network, picture().to(torch.bfloat16), reference_ops)
    (made,) = [each for each in found.module.modules() if isinstance(each, FusedConvolution)]
    assert made.weight.dtype == torch.bfloat16
    assert made.weight.is_contiguous(memory_format=torch.channels_last)


def looks(self: Any, x: Any) -> Any:
    return self.conv(x) if x.sum() > 0 else x


def sets_items(self: Any, x: Any) -> Any:
    x[:, 0] = 0
    return self.conv(x)


def adds_into_a_part(self: Any, x: Any) -> Any:
    part = x[:, :1]
    part += 1
    return self.conv(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_what_cannot_be_traced_is_said() -> None:
    with pytest.raises(UntraceableError, match="assignment"):
        fuse(settled(Written(sets_items, conv=conv())), picture(), reference_ops)
    with pytest.raises(UntraceableError, match="does not compute the same"):
        fuse(settled(Written(adds_into_a_part, conv=conv())), picture(), reference_ops)
    with pytest.raises(UntraceableError, match="control flow"):
        fuse(settled(Written(looks, conv=conv())), picture(), reference_ops)
    with pytest.raises(UntraceableError, match="TorchScript"):
        fuse(torch.jit.script(settled(nn.Sequential(conv()))), picture(), reference_ops)
    with pytest.raises(UntraceableError, match="training"):
        fuse(nn.Sequential(conv()), picture(), reference_ops)
