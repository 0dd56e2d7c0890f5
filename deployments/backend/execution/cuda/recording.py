"""A network at one input size as a list of torch's operations, without those on sizes.

Converted files compute shapes as tensors. On a GPU each of them is read back, which no CUDA graph
can hold. At one size they are constants, and so is all that follows from them alone.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from fermata.foundation.errors import ServingError

ROUNDING = 1e-2
"""Difference of equal computations relative to the largest answer: fp16 has eleven bits."""
LOOKS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
CHANCES = frozenset({"train", "training", "p", "dropout", "dropout_p"})
"""Arguments of torch's operations; where one of them is zero or false, nothing is drawn."""
Tensor = Any
"""torch's functions have no types that a strict check could use."""


class ValuesError(ServingError):
    """A network whose operations depend on the values that it is given."""


def record(function: Callable[..., Any], given: Sequence[Tensor]) -> fx.GraphModule:
    """`function` for tensors of the sizes, types and layouts of `given`; returns what it returns.

    ValuesError where it looks at values or draws random numbers.
    """
    recorder = _Recorder(given)
    with recorder:
        returned = function(*given)
    return recorder.finish(returned)


def check_recorded(
    function: Callable[..., Any], recorded: Callable[..., Any], given: Sequence[Tensor]
) -> None:
    """Compare both on other values than those recorded with; ValuesError where they differ."""
    wanted, found = tree_leaves(function(*given)), tree_leaves(recorded(*given))
    for left, right in zip(wanted, found, strict=True):
        if left.shape != right.shape or not _alike(left.float(), right.float()):
            raise ValuesError("it computes something else for other values")


def _alike(wanted: Tensor, found: Tensor) -> bool:
    if not wanted.numel():
        return True
    # Not a number is alike to itself: zeros may be divided by.
    gap = (wanted - found).nan_to_num().abs().max()
    same = torch.equal(wanted.isnan(), found.isnan())
    return same and bool(gap <= ROUNDING * wanted.nan_to_num().abs().max())


class _Recorder(TorchDispatchMode):
    """Runs all operations, and keeps those that follow from the inputs' values."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.nodes: Any = WeakTensorKeyDictionary()
        """Maps tensors that follow from the inputs' values to their nodes."""
        self.constants: dict[int, tuple[str, Tensor]] = {}
        """By identity, which lasts as long as they are kept here."""
        self.kept: set[int] = set()
        """Memory of these constants."""
        self.made: Any = WeakTensorKeyDictionary()
        """Constants that were made while recording: whether in memory of their own."""
        for place, tensor in enumerate(given):
            self.nodes[tensor] = self.graph.placeholder(f"given_{place}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs):
            raise ValuesError(f"it draws random numbers by {func}")
        read = [each for each in tree_leaves((args, kwargs)) if self._follows(each)]
        if not read:
            return self._make(func, args, kwargs)
        self._take_written(func, args, kwargs)
        # Constants are taken as they are before the operation.
        taken = tree_map(self._noted, (args, kwargs))
        returned = func(*args, **kwargs)
        made = tree_leaves(returned)
        if LOOKS & set(func.tags) or not all(isinstance(each, torch.Tensor) for each in made):
            raise ValuesError(f"it looks at its values by {func}")
        if {each.device for each in made} - {each.device for each in read}:
            raise ValuesError(f"it moves its values by {func}")
        self._note(self.graph.call_function(func, *taken), returned)
        return returned

    def _follows(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value in self.nodes

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation returns that follows from no input."""
        self._check_kept(func, args, kwargs)
        given = {_memory(each) for each in _tensors((args, kwargs))}
        returned = func(*args, **kwargs)
        for each in _tensors(returned):
            if each not in self.made:
                self.made[each] = _memory(each) not in given
        return returned

    def _check_kept(self, func: Any, args: Any, kwargs: Any) -> None:
        # Operations before this one read them as they were.
        if any(_memory(each) in self.kept for each in _written(func, args, kwargs)):
            raise ValuesError(f"it changes a constant that it has used by {func}")

    def _take_written(self, func: Any, args: Any, kwargs: Any) -> None:
        """Let what is about to be written follow from the inputs, too.

        A result may be summed up in zeros. What was there before, as weights, is to stay.
        """
        self._check_kept(func, args, kwargs)
        for tensor in _written(func, args, kwargs):
            if self._follows(tensor):
                continue
            if not self.made.get(tensor, False):
                raise ValuesError(f"it writes into a constant by {func}")
            memory = _memory(tensor)
            if any(_memory(each) == memory for each in self.made if each is not tensor):
                raise ValuesError(f"it writes into memory that has other names by {func}")
            node = self._noted(tensor.clone())
            clone: Any = torch.ops.aten.clone.default
            self.nodes[tensor] = self.graph.call_function(clone, (node,))

    def _note(self, node: fx.Node, returned: Any) -> None:
        if isinstance(returned, torch.Tensor):
            self.nodes[returned] = node
            return
        for place, each in enumerate(returned):
            self._note(self.graph.call_function(_item, (node, place)), each)

    def _noted(self, value: Any) -> Any:
        """An argument as the graph has it."""
        if not isinstance(value, torch.Tensor):
            return value
        if value in self.nodes:
            return self.nodes[value]
        self.kept.add(_memory(value))
        name, _ = self.constants.setdefault(id(value), (f"c_{len(self.constants)}", value))
        return self.graph.get_attr(name)

    def finish(self, returned: Any) -> fx.GraphModule:
        self.graph.output(tree_map(self._noted, returned))
        made: Any = fx.GraphModule(dict(self.constants.values()), self.graph)
        found: fx.GraphModule = made
        return found


def _item(values: Sequence[Any], place: int) -> Any:
    return values[place]


def _tensors(values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _memory(tensor: Tensor) -> int:
    """Equal for tensors that share memory, as long as they live."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Arguments as they are declared, and what is given for them."""
    for place, argument in enumerate(func._schema.arguments):
        given = kwargs.get(argument.name, argument.default_value)
        yield argument, args[place] if place < len(args) else given


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Tensors that an operation writes into."""
    found = _arguments(func, args, kwargs)
    return _tensors(
        [given for each, given in found if each.alias_info and each.alias_info.is_write]
    )


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation that can draw random numbers does so."""
    found = _arguments(func, args, kwargs)
    chances = [given for argument, given in found if argument.name in CHANCES]
    return not any(isinstance(each, bool | int | float) and not each for each in chances)
