"""Networks recorded at one size: operations on sizes go, those on values stay or are refused."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from fermata.deployments.backend.execution.cuda.recording import ValuesError, check_recorded, record

WEIGHT = torch.arange(12.0).reshape(4, 3)


def operations(function: Callable[..., Any], *given: Any) -> list[str]:
    nodes = record(function, given).graph.nodes
    return [str(node.target) for node in nodes if node.op == "call_function"]


def by_shape(batch: Any) -> Any:
    """A shuffle of channels, as converted files have it."""
    shape = torch.tensor(batch.shape)
    wanted = torch.cat([shape[:1], torch.tensor([2, 2])])
    return batch.reshape(wanted.tolist()).transpose(1, 2).reshape(shape.tolist())


def test_operations_on_sizes_are_gone() -> None:
    with torch.inference_mode():
        found = operations(by_shape, torch.ones(3, 4))
    assert found == ["aten.reshape.default", "aten.transpose.int", "aten.reshape.default"]


def test_a_recording_computes_the_same_for_other_values() -> None:
    def run(batch: Any) -> Any:
        first, second = (by_shape(batch) @ WEIGHT).split([1, 2], dim=1)
        return first.exp(), {"second": second.relu()}

    recorded = record(run, [torch.ones(5, 4)])
    other = torch.randn(5, 4)
    found, wanted = recorded(other), run(other)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1]["second"], wanted[1]["second"])


def test_several_inputs_are_told_apart() -> None:
    recorded = record(lambda left, right: left - 2 * right, [torch.ones(2), torch.ones(2)])
    assert recorded(torch.tensor([5.0, 7.0]), torch.tensor([1.0, 2.0])).tolist() == [3.0, 3.0]


def test_sums_into_new_memory_start_anew_each_time() -> None:
    def run(batch: Any) -> Any:
        total = torch.zeros(batch.shape)
        total.add_(batch)
        return total.add_(1.0)

    recorded = record(run, [torch.ones(2)])
    assert recorded(torch.tensor([2.0, 3.0])).tolist() == [3.0, 4.0]
    assert recorded(torch.tensor([2.0, 3.0])).tolist() == [3.0, 4.0]


def branches(batch: Any) -> Any:
    return batch if float(batch.sum()) > 0 else -batch


def selects(batch: Any) -> Any:
    return batch[batch > 0]


def draws(batch: Any) -> Any:
    return batch + torch.rand(batch.shape)


def counts(batch: Any) -> Any:
    return WEIGHT[0].add_(batch.sum())


def changes_later(batch: Any) -> Any:
    factor = torch.zeros(batch.shape)
    found = batch * factor
    factor.fill_(1.0)
    return found


def sums_into_factor(batch: Any) -> Any:
    factor = torch.ones(batch.shape)
    found = batch * factor
    factor.add_(batch)
    return found


def writes_under_view(batch: Any) -> Any:
    total = torch.zeros(batch.shape)
    view = total.view(-1)
    total.copy_(batch)
    return batch * view


def writes_under_part(batch: Any) -> Any:
    total = torch.zeros(batch.shape)
    first, *_ = total.split(1)
    total.copy_(batch)
    return batch * first


def writes_into_weight(batch: Any) -> Any:
    # Without training it is the weight itself, not memory of its own.
    return torch.nn.functional.dropout(WEIGHT, training=False).add_(batch.sum())


def drops(batch: Any) -> Any:
    return torch.nn.functional.dropout(batch, 0.5, training=True)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (changes_later, "changes a constant"),
        (sums_into_factor, "changes a constant"),
        (writes_under_view, "other names"),
        (writes_under_part, "other names"),
        (writes_into_weight, "writes into a constant"),
        (drops, "draws random numbers"),
        (branches, "looks at its values"),
        (selects, "looks at its values"),
        (draws, "draws random numbers"),
        (counts, "writes into a constant"),
    ],
)
def test_what_depends_on_values_is_refused(function: Callable[..., Any], reason: str) -> None:
    with torch.inference_mode(), pytest.raises(ValuesError, match=reason):
        record(function, [torch.ones(3)])


def test_memory_may_be_written_once_other_views_of_it_are_gone() -> None:
    def run(batch: Any) -> Any:
        total = torch.zeros(batch.shape)
        rows = total.view(-1).shape[0]
        return total.add_(batch) * rows

    with torch.inference_mode():
        recorded = record(run, [torch.ones(2)])
        assert recorded(torch.tensor([2.0, 3.0])).tolist() == [4.0, 6.0]


def attends(batch: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(batch, batch, batch)


@pytest.mark.parametrize(
    "function",
    [
        torch.nn.Dropout(0.5).eval(),
        torch.nn.LSTM(4, 3, dropout=0.5, num_layers=2).eval(),
        attends,
        lambda batch: torch.nn.functional.dropout(batch, 0.0),
    ],
)
def test_what_could_draw_random_numbers_but_does_not_is_recorded(
    function: Callable[..., Any],
) -> None:
    with torch.inference_mode():
        recorded = record(function, [torch.ones(2, 3, 4)])
        check_recorded(function, recorded, [torch.randn(2, 3, 4)])


def test_a_recording_that_differs_for_other_values_is_refused() -> None:
    def looks(batch: Any) -> Any:
        return batch + 1 if batch.tolist()[0] else batch - 1

    given = torch.ones(2)
    recorded = record(looks, [given])
    check_recorded(looks, recorded, [2 * given])
    with pytest.raises(ValuesError, match="something else for other values"):
        check_recorded(looks, recorded, [torch.zeros(2)])
