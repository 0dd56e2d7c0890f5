"""Batches of all models of a process share one queue of their device."""

import itertools
import threading
from types import SimpleNamespace

import pytest

from fermata.deployments.backend.execution import device_queue as queues
from fermata.deployments.backend.execution.device_queue import device_queue


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


def test_no_other_stream_is_the_one_that_runs_batches() -> None:
    # torch has a few streams, and gives them out again in turn: what is captured on the one that
    # runs batches would hold those of other models, and these would fail.
    handed = itertools.cycle(range(32))
    torch = SimpleNamespace(cuda=SimpleNamespace(Stream=handed.__next__, current_device=lambda: 0))
    queue = device_queue(torch)
    assert queue.stream not in [queue.beside() for _ in range(100)]


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
