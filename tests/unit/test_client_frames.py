"""Frames from arrays, folders and files."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fermata.clients.describe import ModelDescription, sample_input
from fermata.clients.frames import encode_jpeg, open_frames
from fermata.clients.wire.errors import BadRequestError
from fermata.clients.wire.tensors import split_bytes, to_array


def test_arrays_are_encoded_and_encoded_ones_left_alone() -> None:
    frame = np.full((16, 24, 3), 200, np.uint8)
    data = encode_jpeg(frame)
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (24, 16)
    assert encode_jpeg(data) is data
    with pytest.raises(BadRequestError, match=r"use uint8\[h, w, 3\]"):
        encode_jpeg(np.zeros((4, 4), np.uint8))


def test_a_folder_gives_its_pictures_in_order_of_name(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.png", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    assert list(open_frames(tmp_path, fps=0)) == [b"a.png", b"b.jpg"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRequestError, match="holds no"):
        list(open_frames(tmp_path / "empty"))


def test_a_source_that_is_none_is_named() -> None:
    with pytest.raises(BadRequestError, match="is no file, folder, camera"):
        open_frames("/nowhere/at/all.mp4")


def test_sample_inputs_fit_the_model() -> None:
    def model(datatype: str, shape: tuple[int, ...]) -> ModelDescription:
        return ModelDescription("m", "input", datatype, shape, "", 0, 0)

    numbers = sample_input(model("FP32", (1, 3, -1)), 0, 0, 0)
    assert to_array(numbers).shape == (1, 3, 16)
    assert np.isfinite(to_array(sample_input(model("BF16", (8,)), 0, 0, 0))).all()
    assert to_array(sample_input(model("BOOL", (8,)), 0, 0, 0)).dtype == bool
    (jpeg,) = split_bytes(sample_input(model("BYTES", (1,)), 0, 36, 64).data)
    with Image.open(io.BytesIO(jpeg)) as image:
        assert image.size == (64, 36)
