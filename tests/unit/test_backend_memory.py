"""Batches for which the memory does not suffice; a hung accelerator."""

from typing import Any

import numpy as np
import pytest

from deployments.backend.executor import run_or_halve
from deployments.backend.runner import PlainRunner
from deployments.backend.slot import Slot
from deployments.backend.tensors import Array
from router.core.units import ms
from router.links.messages import Payload, Run


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


def runner(room: int, error: type[Exception]) -> tuple[PlainRunner, list[int]]:
    sizes: list[int] = []

    def model(batch: Array) -> Any:
        sizes.append(len(batch))
        if len(batch) > room:
            raise error("no room")
        return batch[:, 0] * 2

    return PlainRunner(model, 16), sizes


@pytest.mark.parametrize("error", [MemoryError, OutOfMemoryError])
def test_a_batch_without_room_is_halved_until_it_fits(error: type[Exception]) -> None:
    plain, sizes = runner(3, error)
    items = [np.array([value]) for value in range(8)]
    found = run_or_halve(plain, plain.stage(items), list(range(8)), items)
    assert sizes == [8, 4, 2, 2, 4, 2, 2]
    values = {
        place: int(row) for places, rows in found for place, row in zip(places, rows, strict=True)
    }
    assert values == {place: 2 * place for place in range(8)}


def test_what_fits_not_even_alone_fails() -> None:
    plain, _ = runner(0, MemoryError)
    items = [np.array([value]) for value in range(2)]
    with pytest.raises(MemoryError):
        run_or_halve(plain, plain.stage(items), [0, 1], items)


def test_other_errors_are_not_tried_again() -> None:
    plain, sizes = runner(0, ValueError)
    items = [np.array([value]) for value in range(4)]
    with pytest.raises(ValueError, match="no room"):
        run_or_halve(plain, plain.stage(items), [0, 1, 2, 3], items)
    assert sizes == [4]


def test_a_slot_tells_how_far_its_batch_is_past_its_plan() -> None:
    slot = Slot()
    slot.on_router_up(1)
    slot.on_run(0, 1, Run(1, "v", (1,), 0, ms(5)))
    assert slot.overrun_ns(ms(1000)) < 0
    slot.on_payload(ms(10), Payload(1, "UINT8", (1,), b"x"))
    assert slot.overrun_ns(ms(1000)) == ms(1000) - ms(10) - ms(5)
    job = slot.jobs[0]
    slot.on_finished(ms(20), job, 0, ms(10), ms(10), [()])
    assert slot.overrun_ns(ms(1000)) < 0
