"""What `fermata serve` says while models load, and when they cannot be."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from fermata.commands import serve as command
from fermata.deployments.config.deployment import ControlConfig, load_config
from fermata.deployments.control.health import cause_of, check_start
from fermata.foundation.errors import ConfigError


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


class Serve:
    """A Ray Serve that runs nothing, and says so of this application."""

    def __init__(self, **messages: str) -> None:
        deployments = {name: SimpleNamespace(message=said) for name, said in messages.items()}
        there = {"fermata": SimpleNamespace(deployments=deployments)} if messages else {}
        self.told = SimpleNamespace(applications=there)

    def status(self) -> SimpleNamespace:
        return self.told

    def run(self, application: object, name: str) -> None:
        raise RuntimeError("Deploying application failed:\nFailed to update the deployments")

    def start(self, **options: object) -> None:
        raise RuntimeError("Traceback\nRuntimeError: Failed to bind to address '127.0.0.1:8000'.")


def test_the_refusal_of_a_frontend_is_told_without_its_traceback() -> None:
    refusal = "frontend.grpc_port=8001: 127.0.0.1:8001 is taken by process 7 (nc): end it"
    traceback = f"Error:\n  File app.py\nprofiles.errors.ConfigError: {refusal}"
    with pytest.raises(ConfigError, match=rf"^{re.escape(refusal)}$"):
        command._run(Serve(Backend="", Frontend=traceback), None, "fermata")
    with pytest.raises(ConfigError, match="cannot run it: Deploying application failed: Failed to"):
        command._run(Serve(Backend="no room"), None, "fermata")
    with pytest.raises(ConfigError, match="Ray Serve cannot run it"):
        command._run(Serve(), None, "fermata")


def test_a_page_that_cannot_be_served_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"Failed to bind .*: set another control\.port$"):
        command._start_page(Serve(), ControlConfig())


def test_a_cluster_that_serves_already_is_left_alone() -> None:
    command._check_alone(Serve())
    with pytest.raises(ConfigError, match="this Ray cluster serves fermata already"):
        command._check_alone(Serve(Frontend=""))


@pytest.mark.parametrize(
    ("address", "own"), [(None, True), ("", True), ("local", True), ("h:1", False)]
)
def test_ports_of_this_machine_matter_where_everything_runs_on_it(
    monkeypatch: pytest.MonkeyPatch, address: str | None, own: bool
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    config = load_config(command.PACKAGE / "deployments/emulated.yaml")
    assert command._is_all_here(config) is own
    elsewhere = config.frontend.model_copy(update={"resources": {"edge": 1.0}})
    assert not command._is_all_here(config.model_copy(update={"frontend": elsewhere}))


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
