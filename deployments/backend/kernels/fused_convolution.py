"""A convolution with bias, an optional addend and ReLU in one kernel of cuDNN."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Tensor = Any
"""torch's functions have no types that a strict check could use."""


@dataclass(frozen=True, slots=True)
class FusedOps:
    """The two fused functions, with the arguments of cuDNN's."""

    convolution_relu: Callable[..., Tensor]
    """Takes input, weight, bias, stride, padding, dilation, groups."""
    convolution_add_relu: Callable[..., Tensor]
    """Takes input, weight, addend, its factor, bias, stride, padding, dilation, groups."""


def cudnn_ops() -> FusedOps:
    """Functions of cuDNN, which run on a GPU only."""
    functions: Any = torch
    return FusedOps(functions.cudnn_convolution_relu, functions.cudnn_convolution_add_relu)


def reference_ops() -> FusedOps:
    """The same functions kernel by kernel, on any device."""
    conv2d = torch.nn.functional.conv2d

    def convolution_relu(*given: Any) -> Tensor:
        return conv2d(*given).relu()

    def convolution_add_relu(
        batch: Tensor, weight: Tensor, addend: Tensor, factor: float, *rest: Any
    ) -> Tensor:
        return (conv2d(batch, weight, *rest) + factor * addend).relu()

    return FusedOps(convolution_relu, convolution_add_relu)


class FusedConvolution(torch.nn.Module):
    """`relu(conv(x))`, or `relu(conv(x) + addend)`; no groups, padding with zeros."""

    def __init__(self, convolution: torch.nn.Conv2d, ops: FusedOps) -> None:
        super().__init__()
        weight, bias = convolution.weight.detach(), convolution.bias
        self.ops = ops
        self.register_buffer("weight", weight)
        # cuDNN would allocate a bias of zeros at each call.
        given = weight.new_zeros(len(weight)) if bias is None else bias.detach()
        self.register_buffer("bias", given)
        self.shape = (
            list(convolution.stride),
            list(convolution.padding),
            list(convolution.dilation),
            convolution.groups,
        )

    def forward(self, batch: Tensor, addend: Tensor = None) -> Tensor:
        if addend is None:
            return self.ops.convolution_relu(batch, self.weight, self.bias, *self.shape)
        return self.ops.convolution_add_relu(
            batch, self.weight, addend, 1.0, self.bias, *self.shape
        )


def fold(convolution: torch.nn.Conv2d, norm: torch.nn.BatchNorm2d) -> torch.nn.Conv2d:
    """The convolution with the batch norm behind it in its weights, rounded once at the end."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    weight = convolution.weight.detach()
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    bias = -norm.running_mean.double()
    if convolution.bias is not None:
        bias = bias + convolution.bias.detach().double()
    bias = bias * scale
    if norm.bias is not None:
        bias = bias + norm.bias.detach().double()
    folded = torch.nn.Conv2d(
        convolution.in_channels,
        convolution.out_channels,
        convolution.kernel_size,  # type: ignore[arg-type]
        convolution.stride,  # type: ignore[arg-type]
        convolution.padding,  # type: ignore[arg-type]
        convolution.dilation,  # type: ignore[arg-type]
        convolution.groups,
        padding_mode=convolution.padding_mode,
        device="meta",
    )
    # An elementwise product keeps the weight's layout, which may be channels last.
    scaled = (weight.double() * scale.reshape(-1, 1, 1, 1)).to(weight.dtype)
    folded.weight = torch.nn.Parameter(scaled, requires_grad=False)
    folded.bias = torch.nn.Parameter(bias.to(weight.dtype), requires_grad=False)
    return folded.eval()
