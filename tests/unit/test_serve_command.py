"""What `fermata serve` says while models load, and when they cannot be."""

import asyncio
from typing import Any

import pytest
import typer

from commands import serve as command
from deployments.health import cause_of, check_start
from profiles.errors import ConfigError


class Handle:
    """A control plane that has these answers, one after the other."""

    def __init__(self, *answers: tuple[str, str]) -> None:
        self.answers = list(answers)
        self.progress = self

    def remote(self) -> "Handle":
        return self

    def result(self) -> tuple[str, str]:
        return self.answers.pop(0)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LOOK_S", 0)


def test_each_step_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = ("loading", "loading a (1 of 2)"), ("loading", "measuring a (1 of 2)")
    command._wait_until_ready(Handle(one, one, two, ("ready", "")))
    assert capsys.readouterr().err.splitlines() == [one[1], two[1]]


def test_a_model_that_cannot_be_loaded_ends_the_command() -> None:
    with pytest.raises(ConfigError, match=r"v: notes\.pt is no TorchScript file"):
        command._wait_until_ready(
            Handle(("loading", "x"), ("failed", "v: notes.pt is no TorchScript file"))
        )


def test_it_ends_with_its_cluster_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    gone = {"gcs_server"}
    looks: list[set[str]] = [set(), gone, gone, {"gcs_server", "raylet"}]
    with pytest.raises(typer.Exit) as end:
        command._serve_until_lost(lambda: looks.pop(0))
    assert end.value.exit_code == command.LOST
    first, last = capsys.readouterr().err.splitlines()
    assert "gcs_server has ended" in first
    assert "the Ray cluster of this machine is lost" in last


def test_it_ends_by_itself_before_ray_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LAST_S", 0.0)
    with pytest.raises(typer.Exit):
        command._serve_until_lost(lambda: {"gcs_server"})


class Wrapped(Exception):  # noqa: N818
    """As Ray wraps what was raised elsewhere."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


def ended(error: Exception | None) -> Any:
    """A start that has ended so."""

    async def start() -> None:
        if error is not None:
            raise error

    async def go() -> Any:
        task = asyncio.ensure_future(start())
        await asyncio.wait((task,))
        return task

    return asyncio.run(go())


def test_what_only_the_operator_can_mend_is_not_tried_again() -> None:
    check_start(ended(None))
    check_start(ended(ConfigError("no such file")))
    check_start(ended(Wrapped(ConfigError("no such file"))))
    with pytest.raises(OSError, match="the network"):
        check_start(ended(OSError("the network")))
    assert str(cause_of(Wrapped(ConfigError("no such file")))) == "no such file"
