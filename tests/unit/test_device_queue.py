"""Batches of all models of a process share one queue of their device."""

import itertools
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from fermata.deployments.backend.execution.cuda import device_queue as queues
from fermata.deployments.backend.execution.cuda.device_queue import POOL, device_queue


@pytest.fixture(autouse=True)
def _own_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "QUEUES", {})


def played(device: int) -> SimpleNamespace:
    """torch, as far as a queue asks for it."""
    return SimpleNamespace(cuda=SimpleNamespace(Stream=object, current_device=lambda: device))


def test_models_of_one_device_run_on_one_stream_in_turn() -> None:
    first, second = device_queue(played(0)), device_queue(played(0))
    assert first.stream is second.stream
    with first.launching:
        assert not second.launching.acquire(blocking=False)


def test_devices_do_not_wait_for_one_another() -> None:
    assert device_queue(played(0)).stream is not device_queue(played(1)).stream


@dataclass(frozen=True)
class Stream:
    """One of those that torch gives out in turn."""

    number: int


def in_turn() -> SimpleNamespace:
    numbers = itertools.cycle(range(POOL))
    return SimpleNamespace(
        cuda=SimpleNamespace(Stream=lambda: Stream(next(numbers)), current_device=lambda: 0)
    )


def test_no_other_stream_is_the_one_that_runs_batches() -> None:
    # What is captured there would hold batches of other models, and these would fail.
    queue = device_queue(in_turn())
    assert queue.stream not in [queue.beside() for _ in range(100)]


def test_streams_in_use_are_given_to_nobody_else_while_there_are_others() -> None:
    queue = device_queue(in_turn())
    kept = [queue.beside() for _ in range(20)]
    for _ in range(100):
        assert queue.beside() not in kept
    kept += [queue.beside() for _ in range(11)]
    assert len(set(kept)) == POOL - 1
    assert queue.beside() in kept


def test_models_that_are_loaded_at_once_share_it_too() -> None:
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(device_queue(played(0)))) for _ in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(map(id, found))) == 1
