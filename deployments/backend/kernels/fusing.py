"""Rewrites a traced network: batch norms folded, convolutions fused with what follows them.

A rewrite is made only where it gives the same function. Whatever else the network holds stays as
it is: other layers, subclasses, modules with hooks, results that are used twice.
"""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.passes import shape_prop

from fermata.deployments.backend.kernels.fused_convolution import (
    FusedConvolution,
    FusedOps,
    cudnn_ops,
    fold,
)
from fermata.foundation.errors import ServingError

F = torch.nn.functional
RELUS: tuple[Any, ...] = (F.relu, F.relu_, torch.relu, torch.relu_)
ADDS: tuple[Any, ...] = (operator.add, operator.iadd, torch.add)
INPLACE_OPERATORS: tuple[Any, ...] = (
    operator.setitem,
    operator.delitem,
    # `iadd` and its like; a few others are among them, which does no harm.
    *(getattr(operator, name) for name in operator.__all__ if name.startswith("i")),
)

ROUNDING = 1e-2
"""Difference of equal computations relative to the largest answer: fp16 has eleven bits."""


class UntraceableError(ServingError):
    """A network whose operations cannot be listed without running it."""


@dataclass(frozen=True, slots=True)
class FusedNetwork:
    """A network that computes the same with fewer kernels, and the rewrites made for it."""

    module: fx.GraphModule
    folded: int
    """Batch norms that went into their convolution."""
    with_relu: int
    """Convolutions fused with a ReLU alone."""
    with_addend: int
    """Convolutions fused with a sum and a ReLU."""


def fuse(
    network: torch.nn.Module, sample: Any, ops: Callable[[], FusedOps] = cudnn_ops
) -> FusedNetwork:
    """Rewrite a copy of `network`, in evaluation; `sample` is an input of it.

    UntraceableError where its operations depend on values, or where it is no plain torch module.
    """
    if isinstance(network, torch.jit.ScriptModule):
        raise UntraceableError("TorchScript cannot be rewritten")
    if network.training:
        raise UntraceableError("the network is in training mode")
    try:
        traced = fx.symbolic_trace(network)
    # Tracing runs a user's code on stand-ins, which may fail in any way.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UntraceableError(reason) from None
    with torch.inference_mode():
        shapes: Any = shape_prop
        wanted = network(sample.clone())
        found = shapes.ShapeProp(traced).propagate(sample.clone())
        if not _alike(wanted, found):
            # Tracing takes `x += y` for `x = x + y`, which differs where x has another name too.
            raise UntraceableError("the traced network does not compute the same")
        rewrite = _Rewrite(traced, ops())
        counts = (rewrite.fold_norms(), rewrite.fuse_relus(), rewrite.fuse_sums())
    traced.delete_all_unused_submodules()
    graph: Any = traced.graph
    graph.lint()
    traced.recompile()
    return FusedNetwork(traced.eval(), *counts)


def _alike(wanted: Any, found: Any) -> bool:
    """Whether two answers are the same but for rounding; true of what is no tensor."""
    if not isinstance(wanted, torch.Tensor) or not isinstance(found, torch.Tensor):
        return True
    gap = (wanted.float() - found.float()).abs().max()
    return wanted.shape == found.shape and bool(gap <= ROUNDING * wanted.float().abs().max())


class _Rewrite:
    """The rewrites of one traced network, in their order."""

    def __init__(self, traced: fx.GraphModule, ops: FusedOps) -> None:
        self.traced = traced
        self.modules: dict[str, torch.nn.Module] = dict(traced.named_modules())
        self.ops = ops
        self.added = 0

    def fold_norms(self) -> int:
        count = 0
        for node in list(self.traced.graph.nodes):
            norm = self._module(node, torch.nn.BatchNorm2d)
            before = _only_input(node)
            convolution = self._module(before, torch.nn.Conv2d)
            if norm is None or convolution is None or len(before.users) > 1:
                continue
            if norm.training or norm.running_mean is None or norm.running_var is None:
                # It normalises by what is in the batch.
                continue
            self._replace(before, fold(convolution, norm), before.args, (before, node))
            count += 1
        return count

    def fuse_relus(self) -> int:
        count = 0
        for node in list(self.traced.graph.nodes):
            before = _only_input(node)
            convolution = self._fusable(before)
            if convolution is None or not self._is_relu(node):
                continue
            fused = FusedConvolution(convolution, self.ops)
            # In the convolution's place: later its input may have been changed in place.
            self._replace(before, fused, before.args, (before, node))
            count += 1
        return count

    def fuse_sums(self) -> int:
        count = 0
        for node in list(self.traced.graph.nodes):
            total = _only_input(node)
            if total is None or len(total.users) > 1 or not self._is_relu(node):
                continue
            for convolution_node, addend in _terms(total):
                convolution = self._fusable(convolution_node)
                if convolution is None or not self._may_add(convolution_node, addend, total, node):
                    continue
                fused = FusedConvolution(convolution, self.ops)
                arguments = (*convolution_node.args, addend)
                self._replace(node, fused, arguments, (node, total, convolution_node))
                count += 1
                break
        return count

    def _may_add(self, node: fx.Node, addend: fx.Node, total: fx.Node, relu: fx.Node) -> bool:
        """Whether the sum is of two tensors of one kind, and nothing changes them before it."""
        mine, other = node.meta.get("tensor_meta"), addend.meta.get("tensor_meta")
        if mine is None or other is None:
            return False
        if (mine.shape, mine.dtype) != (getattr(other, "shape", ()), getattr(other, "dtype", "")):
            return False
        if _changes(total, self.modules) and total.args[0] is addend:
            # The sum is written into the addend, which may be part of what is read elsewhere.
            return False
        at: fx.Node = node.next
        while at is not relu:
            if at is not total and _changes(at, self.modules):
                return False
            at = at.next
        return True

    def _module(self, node: fx.Node | None, kind: type) -> Any:
        """The module that the node calls on one input, where it is exactly of that kind."""
        if node is None or node.op != "call_module" or node.kwargs or len(node.args) != 1:
            return None
        module = self.modules[str(node.target)]
        return module if type(module) is kind and not _has_hooks(module) else None

    def _fusable(self, node: fx.Node | None) -> Any:
        """The convolution of a node whose result is used once; None where cuDNN cannot fuse it."""
        convolution = self._module(node, torch.nn.Conv2d)
        if node is None or convolution is None or len(node.users) > 1:
            return None
        plain = convolution.padding_mode == "zeros" and not isinstance(convolution.padding, str)
        # cuDNN's fused kernels are for dense convolutions.
        return convolution if plain and convolution.groups == 1 else None

    def _is_relu(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return self._module(node, torch.nn.ReLU) is not None
        if node.op == "call_method":
            return node.target in ("relu", "relu_") and len(node.args) == 1 and not node.kwargs
        return node.op == "call_function" and node.target in RELUS and len(node.args) <= 2

    def _replace(
        self, place: fx.Node, module: torch.nn.Module, arguments: Any, old: tuple[fx.Node, ...]
    ) -> None:
        """Call `module` at `place`, in the stead of the nodes `old`, the result's one among them.

        Each place has a module of its own: the old one may be called from other places too.
        """
        result = max(old, key=list(self.traced.graph.nodes).index)
        name = f"rewritten_{self.added}"
        self.added += 1
        self.traced.add_submodule(name, module)
        self.modules[name] = module
        with self.traced.graph.inserting_before(place):
            new = self.traced.graph.call_module(name, tuple(arguments))
        new.meta = dict(result.meta)
        result.replace_all_uses_with(new)
        for node in sorted(old, key=list(self.traced.graph.nodes).index, reverse=True):
            self.traced.graph.erase_node(node)


def _only_input(node: fx.Node) -> Any:
    """The node whose result this one takes first; None without one."""
    first = node.args[0] if node.args else node.kwargs.get("input")
    return first if isinstance(first, fx.Node) and node.op.startswith("call_") else None


def _terms(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """(one term, the other) of a sum of two tensors, in both orders."""
    if node.op == "call_method":
        known = node.target in ("add", "add_")
    else:
        known = node.op == "call_function" and node.target in ADDS
    if not known or len(node.args) != 2 or node.kwargs:
        return
    left, right = node.args
    if isinstance(left, fx.Node) and isinstance(right, fx.Node) and left is not right:
        yield left, right
        yield right, left


def _changes(node: fx.Node, modules: dict[str, torch.nn.Module]) -> bool:
    """Whether a node may write into one of its inputs."""
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    if node.kwargs.get("inplace") or "out" in node.kwargs or node.target in INPLACE_OPERATORS:
        return True
    # By torch's convention such names end so; `__getitem__` and its like change nothing.
    name = str(getattr(node.target, "__name__", node.target))
    if name.endswith("_") and not name.endswith("__"):
        return True
    # `inplace` may be given by position, as in `relu(x, True)`.
    return node.op == "call_function" and any(each is True for each in node.args)


def _has_hooks(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
