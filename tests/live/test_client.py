"""Our own clients, as commands, against a real frontend with stand-ins behind it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("uvicorn")

from stand_in import Running, StandIn, jpeg, options, wait_for

from fermata.clients.pending import FrameResult
from fermata.clients.stream import FrameStream, StreamOptions
from fermata.commands.load import load
from fermata.commands.stream import stream
from fermata.deployments.models.pictures.decoding import frame_size
from fermata.deployments.specs.frontend import StreamLimits
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms, seconds

pytestmark = pytest.mark.live

app = typer.Typer()
app.command()(load)
app.command()(stream)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    system = Running(options, delay_s=0.005)
    yield system
    system.close()


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def measure(running: Running, *more: str) -> dict[str, object]:
    common = ("--server", running.target, "--duration-s", "1", "--warmup-s", "0.3", "--json")
    found: dict[str, object] = json.loads(run("load", *common, *more))
    return found


@pytest.mark.parametrize(
    "how",
    [
        ("--processes", "2"),
        ("--unary",),
        ("--arrivals", "gamma"),
        ("--arrivals", "cameras", "--fps", "20"),
    ],
)
def test_load_counts_every_request_once(running: Running, how: tuple[str, ...]) -> None:
    found = measure(running, "--model", "bytes", "--rate", "200", "--slo-ms", "500", *how)
    assert found["requests"] == pytest.approx(200, rel=0.4)
    assert found["bad_rate"] == 0
    assert (found["lost"], found["duplicates"], found["strangers"]) == (0, 0, 0)


def test_load_does_not_slow_down_with_the_server(running: Running) -> None:
    """A server that answers nothing gets every request all the same, and each is counted bad."""
    started_at = time.monotonic()
    found = measure(running, "--model", "silent", "--rate", "100", "--slo-ms", "300")
    assert time.monotonic() - started_at < 10
    assert found["offered_rps"] == pytest.approx(100, rel=0.4)
    assert found["refused"] == {"DEADLINE_EXCEEDED": found["requests"]}
    assert found["bad_rate"] == 1


def begin(running: Running, *more: str) -> "subprocess.Popen[str]":
    """A load as a command of its own, which Ctrl-C reaches as in a terminal."""
    common = ("--model", "bytes", "--server", running.target, "--json", "--duration-s", "60")
    return subprocess.Popen(
        [sys.executable, "-m", "fermata.commands.start", "load", *common, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def interrupt(child: "subprocess.Popen[str]") -> tuple[str, list[str]]:
    """End it as Ctrl-C does; returns what it printed, and the lines of its errors."""
    os.killpg(child.pid, signal.SIGINT)
    # It waits for answers, and not for the time that was asked for.
    said, errors = child.communicate(timeout=10)
    return said, errors.splitlines()


def wait_for_requests(running: Running) -> None:
    before = set(running.stand_in.held)
    wait_for(lambda: running.stand_in.held - before, 30.0)


@pytest.mark.parametrize(
    "how", [("--processes", "2"), ("--arrivals", "cameras", "--fps", "20"), ("--unary",)]
)
def test_an_interrupted_load_tells_what_it_has_measured(
    running: Running, how: tuple[str, ...]
) -> None:
    with begin(running, "--rate", "100", "--slo-ms", "5000", "--warmup-s", "0.1", *how) as child:
        wait_for_requests(running)
        # Measured is what it sends meanwhile.
        time.sleep(2.0)
        said, errors = interrupt(child)
    assert child.returncode == 130
    found = json.loads(said)
    assert 1.0 < found["duration_s"] < 6.0
    assert found["offered_rps"] == pytest.approx(100, rel=0.4)
    assert found["good"] == found["requests"]
    assert errors[0].startswith("fermata: measured ")
    assert errors[1:] == ["fermata: interrupted"]


def test_a_load_interrupted_in_its_warm_up_says_so(running: Running) -> None:
    with begin(running, "--rate", "100", "--warmup-s", "50") as child:
        wait_for_requests(running)
        said, errors = interrupt(child)
    assert (child.returncode, said) == (130, "")
    assert errors[0] == "fermata: nothing was measured: the warm-up had not ended"


@pytest.mark.parametrize("after_s", [0.4, 1.0, 1.6, 2.2])
def test_a_load_interrupted_as_it_starts_shows_no_stack(running: Running, after_s: float) -> None:
    with begin(running, "--rate", "10", "--processes", "2") as child:
        # Nothing tells from outside how much it has imported by then.
        time.sleep(after_s)
        said, errors = interrupt(child)
    assert child.returncode in (130, -signal.SIGINT)
    assert said == ""
    assert all(each.startswith("fermata: ") for each in errors), errors


def test_load_names_what_is_wrong(running: Running) -> None:
    with pytest.raises(ConfigError, match="'none' is not served here"):
        run("load", "--server", running.target, "--model", "none")
    with pytest.raises(ConfigError, match="give --model"):
        run("load", "--server", running.target)


def film(path: Path) -> None:
    """20 frames, each brighter than the one before."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        track = container.add_stream("mpeg4", rate=25)
        track.width, track.height = 64, 48
        for index in range(20):
            frame = np.full((48, 64, 3), index * 10, np.uint8)
            for packet in track.encode(av.VideoFrame.from_ndarray(frame, "rgb24")):
                container.mux(packet)
        for packet in track.encode():
            container.mux(packet)


def test_a_video_is_streamed_and_answered(running: Running, tmp_path: Path) -> None:
    path = tmp_path / "grey.mp4"
    film(path)
    common = ("--model", "picture", "--server", running.target, "--slo-ms", "1000")
    found = json.loads(run("stream", str(path), *common, "--json"))
    assert found["statuses"] == {"OK": 20}
    brightest = [frame["outputs"]["output"][2] for frame in found["frames"]]
    assert brightest == sorted(brightest)
    assert brightest[-1] == pytest.approx(190 / 255, abs=0.03)
    shown = run("stream", str(path), *common, "--fps", "0", "--frames", "5")
    assert "5 of 5 frames within 1000 ms" in shown
    with pytest.raises(ConfigError, match="takes FP32 tensors, not pictures"):
        run("stream", str(path), "--model", "sum", "--server", running.target)


def test_frames_are_saved_as_they_are_answered(running: Running, tmp_path: Path) -> None:
    film(tmp_path / "grey.mp4")
    folder = tmp_path / "found"
    common = ("--model", "picture", "--server", running.target, "--slo-ms", "1000", "--fps", "0")
    run("stream", str(tmp_path / "grey.mp4"), *common, "--frames", "5", "--draw", str(folder))
    cameras = f"cameras: [{{name: gate/7, source: {tmp_path}/grey.mp4}}]"
    (tmp_path / "cameras.yaml").write_text(cameras)
    many = ("--cameras", str(tmp_path / "cameras.yaml"), "--frames", "3")
    run("stream", *many, *common, "--draw", str(folder))
    for where, count in ((folder, 5), (folder / "gate%2F7", 3)):
        saved = sorted(where.glob("*.jpg"))
        assert [each.stem for each in saved] == [f"{index:06d}" for index in range(count)]
        assert {frame_size(each.read_bytes()) for each in saved} == {(48, 64)}


def test_cameras_of_a_file_stream_together_and_trouble_stays_with_its_own(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    film(Path("film.mp4"))
    Path("broken.mp4").write_bytes(b"no film")
    Path("cameras.yaml").write_text(
        "cameras:\n"
        "- {name: gate, source: film.mp4}\n"
        "- {name: yard, source: film.mp4, fps: 0, slo_ms: 900}\n"
        "- {name: roof, source: broken.mp4}\n"
    )
    arguments = ("stream", "--cameras", "cameras.yaml", "--model", "picture")
    arguments += ("--server", running.target, "--frames", "8", "--slo-ms", "2000")
    done = CliRunner().invoke(app, (*arguments, "--json"), catch_exceptions=False)
    assert done.exit_code == 1
    gate, yard, roof = json.loads(done.stdout)
    for each, name, slo_ms in ((gate, "gate", 2000), (yard, "yard", 900)):
        assert (each["camera"], each["requests"], each["good"]) == (name, 8, 8)
        assert each["slo_ms"] == slo_ms
        assert each["trouble"] == ""
    assert (roof["camera"], roof["requests"]) == ("roof", 0)
    assert "cannot be opened as video" in roof["trouble"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert "100.0%" in shown
    assert "cannot be" in shown


def test_cameras_of_a_load_follow_emulated_uplinks(running: Running, tmp_path: Path) -> None:
    path = tmp_path / "grey.mp4"
    film(path)
    how = ("--model", "picture", "--arrivals", "cameras", "--rate", "100", "--fps", "10")
    how += ("--adapt", "--film", str(path), "--slo-ms", "1000")
    found = measure(running, *how, "--uplink", "20")
    assert found["requests"] == found["good"] == 100
    assert found["worst_client_bad_rate"] == 0
    # Frames of half a kilobyte need half a second and more each.
    found = measure(running, *how, "--uplink", "0.008")
    assert found["lost"] == 0
    assert float(str(found["bad_rate"])) > 0.5
    assert int(str(found["unsent"])) > 0
    with pytest.raises(ConfigError, match="give --arrivals cameras"):
        run("load", "--server", running.target, "--model", "picture", "--adapt")
    with pytest.raises(ConfigError, match="takes FP32 tensors, not pictures"):
        run("load", "--server", running.target, "--model", "sum", *how[2:])
    with pytest.raises(ConfigError, match="uplink=-1: give Mbit/s above 0"):
        run("load", "--server", running.target, *how, "--uplink", "-1")


def test_frame_stream_yields_in_order_and_survives_a_reconnect() -> None:
    system = Running(lambda: options(streams=StreamLimits(age_ns_max=ms(400))), delay_s=0.01)
    frames = [np.full((48, 64, 3), index, np.uint8) for index in range(40)]
    stream = FrameStream(
        system.target, "picture", frames, StreamOptions(slo_ns=seconds(2), fps=50, client="cam")
    )
    results: list[FrameResult] = list(stream)
    assert [each.index for each in results] == list(range(40))
    assert all(each.ok for each in results), [each.message for each in results if not each.ok]
    assert stream.connects > 1
    assert results[20].outputs["output"][2] == pytest.approx(20 / 255, abs=0.01)
    system.close()


def test_time_at_the_server_is_not_the_networks() -> None:
    """32 kbit are at the server for 300 ms: with that time counted, 0.1 Mbit/s."""
    system = Running(options, delay_s=0.3)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    how = StreamOptions(slo_ns=seconds(2), fps=10, client="cam", adapt=True, sides=(64,))
    stream = FrameStream(system.target, "picture", [noise] * 12, how)
    results = list(stream)
    assert all(each.ok for each in results), [each.message for each in results if not each.ok]
    assert stream.adaptation is not None
    samples = stream.adaptation.uplink.estimator.samples
    assert all(each.server_ns == 0 for each in samples), "not acknowledged at once"
    assert stream.adaptation.uplink.bandwidth_bps(time.monotonic_ns()) > 1e6
    system.close()


def test_frame_stream_ends_every_frame_when_nobody_serves() -> None:
    options_ = StreamOptions(slo_ns=ms(100), fps=0)
    results = list(FrameStream("127.0.0.1:1", "picture", [jpeg()] * 3, options_))
    assert [each.status for each in results] == ["DEADLINE_EXCEEDED"] * 3


def test_requests_survive_a_router_that_comes_back() -> None:
    system = Running(options, delay_s=0.005)

    async def restart() -> None:
        port = system.stand_in.server.server.sockets[0].getsockname()[1]
        await system.stand_in.stop()
        await asyncio.sleep(0.5)
        system.stand_in = StandIn("here", 0.005)
        system.stand_in.term = 2
        await system.stand_in.server.start("127.0.0.1", port)

    future = asyncio.run_coroutine_threadsafe(later(restart), system.loop)
    found = measure(system, "--model", "bytes", "--rate", "50", "--slo-ms", "1900")
    future.result(10)
    assert (found["lost"], found["duplicates"]) == (0, 0)
    assert found["bad_rate"] == pytest.approx(0, abs=0.05), found
    assert system.frontend.hub.term == 2
    system.close()


async def later(work: object) -> None:
    await asyncio.sleep(0.8)
    await work()  # type: ignore[operator]
