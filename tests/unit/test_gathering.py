"""Copying the rows of a batch into one buffer."""

import threading

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from fermata.deployments.backend.execution.cuda import gathering
from fermata.deployments.backend.execution.cuda.gathering import PART_BYTES, gather, parts_of


def test_small_batches_are_copied_by_the_thread_that_asks() -> None:
    assert parts_of(64, 150_528, cores=16) == [slice(0, 64)]
    assert parts_of(1, 10 * PART_BYTES, cores=16) == [slice(0, 1)]
    assert parts_of(64, PART_BYTES, cores=2) == [slice(0, 64)]


@pytest.mark.parametrize("rows", [2, 3, 7, 16, 129])
@pytest.mark.parametrize("cores", [4, 6, 16, 64])
def test_every_row_is_in_one_part(rows: int, cores: int) -> None:
    parts = parts_of(rows, PART_BYTES, cores)
    assert 1 < len(parts) <= min(cores // 2, rows, gathering.PARTS_MAX)
    assert [row for part in parts for row in range(rows)[part]] == list(range(rows))


@pytest.mark.parametrize("threads", [1, 3])
def test_large_batches_are_copied_by_several(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(gathering, "PART_BYTES", 64)
    monkeypatch.setattr(gathering, "PARTS_MAX", threads)
    monkeypatch.setattr(gathering.os, "sched_getaffinity", lambda _: range(16))
    rows = [np.arange(16, dtype=np.float32) + 100 * row for row in range(11)]
    with torch.inference_mode():
        buffer = torch.zeros(11, 16)
    seen: set[str] = set()
    real = torch.stack

    def watched(*given: object, **named: object) -> object:
        seen.add(threading.current_thread().name)
        return real(*given, **named)

    monkeypatch.setattr(torch, "stack", watched)
    gather(torch, rows, buffer)
    assert np.array_equal(buffer.numpy(), np.stack(rows))
    assert all(name.startswith("copier") for name in seen) == (threads > 1)


def test_a_row_of_another_shape_is_told_by_whoever_copies_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "PART_BYTES", 128)
    monkeypatch.setattr(gathering.os, "sched_getaffinity", lambda _: range(16))
    rows = [np.zeros(16, np.float32)] * 7 + [np.zeros(15, np.float32)]
    with pytest.raises(RuntimeError):
        gather(torch, rows, torch.zeros(8, 16))


def test_numbers_may_be_rows() -> None:
    buffer = torch.zeros(2, dtype=torch.int64)
    gather(torch, [np.int64(3), np.int64(4)], buffer)
    assert buffer.tolist() == [3, 4]
