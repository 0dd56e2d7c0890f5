"""Padding by `auto_pad`, which depends on the size of what comes, and which onnx2torch lacks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SAME = (b"SAME_UPPER", b"SAME_LOWER")
FILLS = {"Conv": 0.0, "MaxPool": float("-inf")}
"""Operators that can be padded beforehand, and what with."""


@dataclass(frozen=True, slots=True)
class SamePadding:
    """Adds as much as makes an output of input / stride, rounded up, along each axis."""

    reach: tuple[int, ...]
    """Inputs that one output sees along each axis, the gaps of dilation counted in."""
    strides: tuple[int, ...]
    is_upper: bool
    """Whether an odd place goes to the end of an axis."""
    fill: float

    def around(self, sides: tuple[int, ...]) -> list[int]:
        """Places before and after each axis, the last axis first, as torch pads."""
        pads: list[int] = []
        for side, reach, stride in zip(sides, self.reach, self.strides, strict=True):
            outputs = -(-side // stride)
            total = max(0, (outputs - 1) * stride + reach - side)
            less, more = total // 2, total - total // 2
            pads = [less, more, *pads] if self.is_upper else [more, less, *pads]
        return pads


def take_same_padding(graph: Any) -> dict[str, SamePadding]:
    """The paddings of a graph by the new names of their nodes, which have none from here on."""
    from onnx import helper

    kernels = {weight.name: tuple(weight.dims[2:]) for weight in graph.initializer}
    taken: dict[str, SamePadding] = {}
    for node in graph.node:
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if given.get("auto_pad") not in SAME or node.op_type not in FILLS:
            continue
        # Stated by pools always, by convolutions where the weights do not tell.
        kernel = tuple(given.get("kernel_shape") or kernels[node.input[1]])
        ones = (1,) * len(kernel)
        dilations = given.get("dilations") or ones
        reach = tuple((side - 1) * gap + 1 for side, gap in zip(kernel, dilations, strict=True))
        strides = tuple(given.get("strides") or ones)
        is_upper = given["auto_pad"] == SAME[0]
        node.name = f"same_padded_{len(taken)}"
        taken[node.name] = SamePadding(reach, strides, is_upper, FILLS[node.op_type])
        kept = [each for each in node.attribute if each.name != "auto_pad"]
        del node.attribute[:]
        node.attribute.extend(kept)
    return taken


def put_same_padding(network: "torch.nn.Module", taken: dict[str, SamePadding]) -> None:
    """Pad before each node that the paddings were taken from."""
    import torch

    class Padded(torch.nn.Module):
        """A node behind its padding."""

        def __init__(self, node: torch.nn.Module, padding: SamePadding) -> None:
            super().__init__()
            self.node = node
            self.padding = padding

        def forward(self, value: torch.Tensor) -> Any:
            pads = self.padding.around(tuple(value.shape[2:]))
            if any(pads):
                value = torch.nn.functional.pad(value, pads, value=self.padding.fill)
            return self.node(value)

    for name, padding in taken.items():
        network.add_module(name, Padded(network.get_submodule(name), padding))
