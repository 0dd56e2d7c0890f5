"""What `fermata stream` refuses, before it looks for a server."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from fermata.clients.frames import open_captures
from fermata.clients.network.emulated_link import BandwidthTrace
from fermata.clients.pending import FrameResult
from fermata.clients.stream import StreamOptions
from fermata.clients.wire.errors import BadRequestError
from fermata.commands.load import load
from fermata.commands.profile import at_sizes
from fermata.commands.stream import stream
from fermata.commands.streaming.camera import Camera, read_cameras
from fermata.commands.streaming.many import RunningCamera, table_of
from fermata.commands.streaming.uplinks import read_uplink
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms

app = typer.Typer()
app.command()(stream)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("/no/such.mp4",), "is no file, folder, camera number"),
        (("--fps", "-3"), "fps=-3: give 0 or more"),
        (("--fps", "nan"), "fps=nan: give 0 or more"),
        (("--frames", "0"), "frames=0: give 1 or more"),
        (("film.mp4", "--adapt"), "give --fps above 0"),
        (("film.mp4", "--adapt", "--fps", "0"), "give --fps above 0"),
        (("still.jpg", "--adapt", "--fps", "5"), "'still.jpg' is no video"),
        ((".", "--adapt", "--fps", "5"), "'.' is no video"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("film.mp4", "still.jpg"):
        (tmp_path / name).write_bytes(b"")
    source = () if not arguments[0].startswith("--") else ("film.mp4",)
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, (*source, *arguments), catch_exceptions=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cameras: []", "names no camera: list them under `cameras`"),
        ("- film.mp4", "must be an object with named fields"),
        ("cameras: [{source: film.mp4}]", r"cameras\[0\].name"),
        ("cameras: [{name: a}]", r"cameras\[0\].source"),
        ("cameras: [{name: a, source: film.mp4, speed: 3}]", "unknown key; allowed: name, source"),
        (
            "cameras: [{name: a, source: film.mp4}, {name: a, source: film.mp4}]",
            "two cameras are named 'a'",
        ),
        ("cameras: [{name: a, source: none.mp4}]", "camera 'a': .*none.mp4' is no file"),
        ("cameras: [{name: a, source: film.mp4, fps: -1}]", r"cameras\[0\].fps"),
        ("cameras: [{name: a, source: film.mp4, slo_ms: 0}]", r"cameras\[0\].slo_ms"),
        ("cameras: [{name: a, source: film.mp4, adapt: true}]", "camera 'a': adapt needs"),
        ("cameras: [{name: a, source: film.mp4, accuracy_floor: 2}]", "accuracy_floor"),
        ("cameras: [{name: a, source: film.mp4, uplink: 0}]", "uplink=0: give Mbit/s above 0"),
        ("cameras: [{name: a, source: film.mp4, uplink: no.csv}]", "no.csv: cannot be read"),
        ("cameras: [{name: a, source: film.mp4, uplink: [5]}]", r"uplink=\[5\]: must be Mbit/s"),
    ],
)
def test_files_of_cameras_that_cannot_be_are_refused(
    content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "film.mp4").write_bytes(b"")
    file = tmp_path / "cameras.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, ("--cameras", str(file)), catch_exceptions=False)


def test_a_camera_has_the_options_of_the_command_unless_it_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(b"")
    file = tmp_path / "cameras.yaml"
    file.write_text(
        "cameras:\n"
        "- {name: a, source: film.mp4}\n"
        "- {name: b, source: 'rtsp://host/1', fps: 0, model: faces, adapt: false, uplink: null}\n"
    )
    usual = Camera(model="gate", fps=8.0, slo_ms=200.0, adapt=True, accuracy_floor=0.5)
    first, second = read_cameras(file, usual)
    assert first == replace(usual, name="a", source=str(tmp_path / "film.mp4"))
    assert (second.source, second.fps, second.model) == ("rtsp://host/1", 0, "faces")
    assert not second.adapt
    assert second.slo_ms == 200.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("t_s,mbps\n0,5\n0,6\n", "step of t_s=0.0: must be a finite number above 0"),
        ("t_s,mbps\n5,5\n0,6\n", "step of t_s=-5.0: must be a finite number above 0"),
        ("t_s,mbps\n0,5\n1,6\n1,7\n", "step of t_s=0.0: must be a finite number above 0"),
        ("t_s,mbps\n0,5\n0.001,6\n90000,7\n", "steps=.* must be 1000000 at most"),
        ("t_s,mbps\n0,5\n1\n", "give columns t_s, mbps of numbers"),
        ("t_s,mbps\n0,0\n1,5\n", r"mbps\[0\]=0.0: must be a finite number above 0"),
    ],
)
def test_traces_that_no_link_can_follow_are_refused(
    content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "trace.csv").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_uplink("trace.csv", tmp_path)


def test_a_trace_of_uneven_steps_is_followed_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("t_s,mbps\n10,8\n11,4\n13.5,2\n")
    trace = read_uplink("trace.csv", tmp_path)
    # 1 s, 2.5 s, and the last as long as the one before, in steps of 500 ms.
    assert trace == BandwidthTrace((8e6,) * 2 + (4e6,) * 5 + (2e6,) * 5, ms(500))


def test_a_trace_whose_times_were_rounded_has_even_steps(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("t_s,mbps\n0,8\n0.3333,4\n0.6667,2\n")
    trace = read_uplink("trace.csv", tmp_path)
    assert trace == BandwidthTrace((8e6, 4e6, 2e6), 333_300_000)


def test_an_uplink_that_no_camera_would_follow_is_refused() -> None:
    loads = typer.Typer()
    loads.command()(load)
    with pytest.raises(ConfigError, match=r"--uplink=5 .* give --adapt"):
        CliRunner().invoke(loads, ("--model", "m", "--uplink", "5"), catch_exceptions=False)


def test_a_camera_that_nobody_looks_at_takes_no_more_memory_with_time() -> None:
    running = RunningCamera(Camera("a", "rtsp://host/1"), StreamOptions())
    for number in range(1000):
        running.on_result(number * ms(100), FrameResult(number, 0, "OK"))
    assert len(running.recent_ns) <= 51
    assert running.fps(ms(99_900)) == pytest.approx(10.2)


def test_what_a_table_says_of_a_camera_is_shown_as_it_is() -> None:
    running = RunningCamera(Camera("[b]door[/i]", "rtsp://host/1"), StreamOptions())
    running.trouble = "'rtsp://[fe80::1]/1' has broken off [/x]"
    console = Console(width=200, file=StringIO())
    console.print(table_of([running]))
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "[b]door[/i]" in shown
    assert "'rtsp://[fe80::1]/1' has broken off [/x]" in shown


def test_trouble_of_a_camera_does_not_tell_its_password() -> None:
    with pytest.raises(BadRequestError) as caught:
        next(open_captures("rtsp://admin:s3cret@127.0.0.1:1/x"))
    assert "'rtsp://...@127.0.0.1:1/x' cannot be opened as video" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_sides_are_for_models_that_take_pictures() -> None:
    assert at_sizes(["faces:centerface"], "160, 224") == [
        "faces:centerface@160",
        "faces:centerface@224",
    ]
    with pytest.raises(ConfigError, match="takes text and has no side"):
        at_sizes(["text:topics"], "160")
    with pytest.raises(ConfigError, match="sides of 1 to 9999 pixels"):
        at_sizes(["faces:centerface"], "100000")
