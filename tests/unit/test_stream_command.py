"""What `fermata stream` refuses, before it looks for a server."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fermata.commands.profile import at_sizes
from fermata.commands.stream import stream
from fermata.foundation.errors import ConfigError

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


def test_sides_are_for_models_that_take_pictures() -> None:
    assert at_sizes(["faces:centerface"], "160, 224") == [
        "faces:centerface@160",
        "faces:centerface@224",
    ]
    with pytest.raises(ConfigError, match="takes text and has no side"):
        at_sizes(["text:topics"], "160")
    with pytest.raises(ConfigError, match="sides of 1 to 9999 pixels"):
        at_sizes(["faces:centerface"], "100000")
