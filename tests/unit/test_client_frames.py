"""Frames from arrays, folders and files."""

import io
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fermata.clients.describe import ModelDescription, sample_input
from fermata.clients.frames import encode_jpeg, has_end, open_captures, open_frames
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


FRAMES = 6


def film(path: Path) -> bytes:
    """A film of six frames, four a second."""
    import av

    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=4)
        stream.width, stream.height = 64, 48
        for number in range(FRAMES):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * number, np.uint8))
            out.mux(stream.encode(picture))
        out.mux(stream.encode())
    return path.read_bytes()


class Site(BaseHTTPRequestHandler):
    """A film, and a camera that breaks off after a few pictures."""

    content = b""

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path == "/film.mp4":
            self.send_header("Content-Length", str(len(self.content)))
            self.end_headers()
            self.wfile.write(self.content)
            return
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=next")
        self.end_headers()
        picture = encode_jpeg(np.zeros((48, 64, 3), np.uint8))
        head = f"--next\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
        with suppress(ConnectionError):
            for _ in range(FRAMES):
                self.wfile.write(head.encode() + picture + b"\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing of what is asked for is shown."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    Site.content = film(tmp_path / "film.mp4")
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_film_on_the_web_ends_as_a_file_does(site: str) -> None:
    assert has_end(f"{site}/film.mp4")
    # All of its frames: those that come sooner than asked for wait, as a file's do.
    assert len(list(open_captures(f"{site}/film.mp4", 100))) == FRAMES


def test_camera_on_the_web_is_worth_another_try(site: str) -> None:
    assert not has_end(f"{site}/camera")
    assert not has_end("http://127.0.0.1:9/film.mp4")
    assert not has_end("rtsp://127.0.0.1:9/1")
    assert has_end("film.mp4")
    assert len(list(islice(open_captures(f"{site}/camera", 0), 3))) == 3
