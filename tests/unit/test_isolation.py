"""Models in processes with environments of their own."""

import ast
import os
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.environments import make_environment
from fermata.deployments.backend.execution.executor import describe
from fermata.deployments.backend.execution.out_of_memory import is_out_of_memory
from fermata.deployments.backend.execution.runners.runner import innermost
from fermata.deployments.backend.isolation import child
from fermata.deployments.backend.isolation.environment import PYTHON_MIN, interpreter_of
from fermata.deployments.backend.isolation.model import (
    IsolatedModel,
    ModelError,
    ProcessEndedError,
    down,
    isolated,
)
from fermata.deployments.backend.models.loaders import load_runner
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import known_profiles, model_specs
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import CONTROLS, TensorSpec
from fermata.foundation.errors import ConfigError
from tests.isolated_models import MODELS

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("environments")
    return make_environment(folder / "one", 2), make_environment(folder / "two", 3)


@pytest.fixture
def opened(
    environments: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Opens runners of the models, and closes them."""
    (tmp_path / "own_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    runners: list[Any] = []

    def load(function: str, environment: int = 0, **more: Any) -> Any:
        given = {"batch_size_max": 4, "input_shape": (3,), **more}
        spec = ModelSpec(
            function, f"own_models:{function}", environment=environments[environment], **given
        )
        runners.append(load_runner(spec, "cpu", MemoryBudget()))
        return runners[-1]

    yield load
    for runner in runners:
        runner.close()


def run(runner: Any, *rows: Any) -> Any:
    return runner.run(runner.stage([np.asarray(row, np.float32) for row in rows]))


def model_of(runner: Any) -> IsolatedModel:
    model = isolated(runner)
    assert model is not None
    return model


def wait_for_change(model: IsolatedModel) -> threading.Semaphore:
    """Released whenever the model's process has ended or is back."""
    changes = threading.Semaphore(0)
    model.on_change = changes.release
    return changes


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_models_with_conflicting_libraries_run_side_by_side(opened: Open) -> None:
    twice, thrice = opened("plain", 0), opened("plain", 1)
    assert run(twice, [1, 2, 3], [0, 0, 1]).tolist() == [[12], [2]]
    assert run(thrice, [1, 2, 3]).tolist() == [[18]]


def test_arrays_by_name_texts_and_ragged_answers_come_back_as_they_are(opened: Open) -> None:
    inputs = (TensorSpec("ids", "INT64", (-1,)), TensorSpec("note", "BYTES", (1,)))
    runner = opened("named", inputs=inputs)
    items = [
        {"ids": np.array([1, 2]), "note": np.array([text], object)} for text in (b"", "ä".encode())
    ]
    found = runner.run(runner.stage(items))
    assert found["sum"].tolist() == [3, 3]
    assert found["sum"].dtype == np.int64
    assert found["texts"].tolist() == [[b""], ["ä".encode()]]
    assert [row.tolist() for row in found["ragged"]] == [[0, 1], [0, 1, 2]]


def test_a_large_batch_after_a_small_one_grows_the_memory(opened: Open) -> None:
    runner = opened("plain", input_shape=(-1,))
    for size in (1, 100_000, 10, 3_000_000):
        assert run(runner, np.ones(size)).tolist() == [[2 * size]]


def test_a_model_may_keep_its_inputs(opened: Open) -> None:
    """The next batch is written over the memory of this one, and not over the model's array."""
    first = np.arange(3, dtype=np.float32)
    memory = child.SharedArrays(os.memfd_create("test"))
    kept = memory.read(memory.write([first]))[0]
    memory.write([first + 1])
    assert kept.tolist() == first.tolist()
    kept[0] = 7
    os.close(memory.file)


def test_a_size_is_given_to_a_function_that_takes_one(opened: Open) -> None:
    found = run(opened("sized@8", input_shape=(3, 8, 8)), np.zeros((3, 8, 8)))
    assert found.tolist() == [8]


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (11, "ValueError: the first and the second line"),
        (13, "SystemExit: 7"),
        (14, "MemoryError: too large"),
        (16, "TypeError: 'output' is complex128; return numbers, flags or text"),
    ],
)
def test_an_error_is_the_batch_s_own_and_the_process_stays(
    opened: Open, wish: int, reason: str
) -> None:
    runner = opened("troubled")
    pid = int(run(runner, [0, 0, 0])[0, 0])
    with pytest.raises((ModelError, MemoryError)) as raised:
        run(runner, [wish, 0, 0])
    assert describe(raised.value) == reason
    assert is_out_of_memory(raised.value) is (wish == 14)
    runner.check_device()
    assert int(run(runner, [0, 0, 0])[0, 0]) == pid


@pytest.mark.parametrize(
    ("wish", "reason"),
    [(12, "its process ended with signal 9 (SIGKILL)"), (15, "its process ended with exit code 9")],
)
def test_a_process_that_ends_fails_its_batch_and_is_started_again(
    opened: Open, wish: int, reason: str
) -> None:
    runner = opened("troubled")
    pid = int(run(runner, [0, 0, 0])[0, 0])
    changes: queue.SimpleQueue[tuple[dict[str, str], str]] = queue.SimpleQueue()

    def look() -> None:
        """Look while the process is as it is: its keeper goes on after this."""
        changes.put((down({"a": runner}), outcome(runner)))

    model_of(runner).on_change = look
    with pytest.raises(ProcessEndedError) as raised:
        run(runner, [wish, 0, 0])
    assert str(raised.value) == reason
    runner.check_device()
    again = f"ProcessEndedError: {reason}; it is being started again"
    assert changes.get(timeout=60) == ({"a": ""}, again)
    is_down, other = changes.get(timeout=60)
    assert not is_down
    assert int(other) != pid


def outcome(runner: Any) -> str:
    """The id of the process that ran a batch, or the error."""
    try:
        return str(run(runner, [0, 0, 0])[0, 0])
    except ProcessEndedError as error:
        return describe(error)


def test_a_process_that_cannot_be_started_again_tells_why(opened: Open, tmp_path: Path) -> None:
    runner = opened("troubled")
    changes = wait_for_change(model_of(runner))
    (tmp_path / "own_models.py").write_text("raise ImportError('moved away')")
    with pytest.raises(ProcessEndedError):
        run(runner, [12, 0, 0])
    assert changes.acquire(timeout=60)
    assert changes.acquire(timeout=60)
    assert "ImportError: moved away" in down({"a": runner})["a"]


def test_the_process_ends_when_its_model_is_closed(opened: Open) -> None:
    runner = opened("troubled")
    pid = int(run(runner, [0, 0, 0])[0, 0])
    model = model_of(runner)
    runner.close()
    model.keeper.join(60)
    assert not is_alive(pid)
    with pytest.raises(ProcessEndedError):
        run(runner, [0, 0, 0])


def test_the_process_ends_with_its_backend_whatever_it_runs(
    environments: tuple[str, str], tmp_path: Path
) -> None:
    """It would not see that a channel is closed: it sleeps."""
    (tmp_path / "own_models.py").write_text(
        "import os, time\ndef make():\n print(os.getpid(), flush=True)\n"
        " return lambda batch: time.sleep(1000)\n"
    )
    code = (
        "from fermata.deployments.backend.isolation.model import IsolatedModel\n"
        "from fermata.deployments.specs.backend import ModelSpec\n"
        f"model = IsolatedModel(ModelSpec('a', 'own_models:make', environment={environments[0]!r},"
        " input_shape=(1,)), 'cpu')\n"
        "import numpy\nmodel(numpy.zeros((1, 1)))\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, stdout=-1
    ) as backend:
        assert backend.stdout is not None
        pid = int(backend.stdout.readline())
        end = os.pidfd_open(pid)
        backend.kill()
        # Readable once the process has ended.
        assert select.select([end], [], [], 60)[0]
        os.close(end)


def test_sequences_whose_state_went_with_the_process_are_refused(opened: Open) -> None:
    inputs = (TensorSpec("input", "FP32", (3,)), *CONTROLS)
    runner = opened("Counter", inputs=inputs, keeps_state=True)
    inner = innermost(runner)

    def step(key: int, start: bool = False) -> Any:
        item = {
            "input": np.zeros(3, np.float32),
            "sequence_id": np.uint64(key).reshape(()),
            "sequence_start": np.array(start),
            "sequence_end": np.array(False),
        }
        inner.check(item)
        return runner.run(runner.stage([item])).tolist()

    assert [step(1, True), step(2, True), step(1)] == [[[1]], [[1]], [[2]]]
    model = model_of(runner)
    changes = wait_for_change(model)
    assert model.process is not None
    model.process.kill()
    for _ in range(2):
        assert changes.acquire(timeout=60)
    with pytest.raises(ProcessEndedError, match="the state of its sequences is lost"):
        step(1)
    with pytest.raises(Exception, match="start it anew"):
        step(2)
    assert [step(3, True), step(3)] == [[[1]], [[2]]]
    inner.end(3)
    assert step(4, True) == [[1]]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("broken", "RuntimeError: no weights"),
        ("dying", "its process ended with signal 11 (SIGSEGV) while it loaded own_models:dying"),
        ("absent", "AttributeError: module 'own_models' has no attribute 'absent'"),
        ("nothing", "TypeError: own_models:nothing is a int, not a function"),
    ],
)
def test_a_model_that_does_not_load_says_so_in_one_line(
    opened: Open, function: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        opened(function)
    assert reason in str(raised.value)
    assert str(raised.value).startswith(f"{function} in environment ")
    assert "\n" not in str(raised.value)


def test_a_module_that_the_environment_lacks_is_named(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "own_models.py").write_text("import not_installed")
    with pytest.raises(ConfigError, match="ModuleNotFoundError: No module named 'not_installed'"):
        opened("plain")


def test_a_batch_that_fails_at_warm_up_leaves_no_process(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "own_models.py").write_text(
        "import os\ndef make():\n def model(batch):\n  raise ValueError(os.getpid())\n"
        " return model\n"
    )
    before = {each for each in threading.enumerate() if each.name == "keeper of make"}
    with pytest.raises(Exception, match=r"\d+") as raised:
        opened("make")
    keepers = {each for each in threading.enumerate() if each.name == "keeper of make"} - before
    for keeper in keepers:
        keeper.join(60)
    assert not is_alive(int(str(raised.value).split()[-1]))


def test_environments_that_cannot_run_a_model_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = make_environment(tmp_path / "bare", 1, with_numpy=False)
    false = tmp_path / "false"
    false.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho '[[3, 6], true]'\n")
    plain = tmp_path / "plain"
    plain.write_text("text")
    for each in (false, old):
        each.chmod(0o755)
    cases = {
        "/nowhere": "is not there; make it: python -m venv /nowhere",
        str(empty): "is no virtual environment: it has no bin/python",
        str(false): "does not run Python: broken; give the folder of a virtual environment",
        str(old): "is Python 3.6; give 3.9 or later",
        str(plain): "does not run Python",
        bare: f"has no numpy; run {bare}/bin/python -m pip install numpy",
    }
    for given, reason in cases.items():
        with pytest.raises(ConfigError) as raised:
            interpreter_of(given)
        assert reason in str(raised.value)
        assert f"environment={given!r}" in str(raised.value)
        assert "\n" not in str(raised.value)


def test_an_environment_is_given_by_its_folder_or_its_python(environments: tuple[str, str]) -> None:
    folder = environments[0]
    python = Path(folder, "bin", "python")
    assert interpreter_of(folder) == interpreter_of(str(python)) == python


@pytest.mark.parametrize(
    "model", ["digits:small", "./model.onnx", "emulated", "torchvision:alexnet"]
)
def test_only_functions_run_in_environments(model: str) -> None:
    config = {
        "applications": [
            {
                "name": "a",
                "slo_ms": 100,
                "environment": "/env",
                "input": {"shape": [64]},
                "variants": [{"name": "v", "model": model, "alpha_ms": 1, "beta_ms": 1}],
            }
        ]
    }
    given = read_config(config)
    with pytest.raises(ConfigError, match=r"environment='/env' of a: .* only a module:function"):
        model_specs(given, known_profiles(given))


def test_the_file_of_the_process_keeps_to_old_words_and_its_own_modules() -> None:
    tree = ast.parse(Path(child.__file__).read_text(), feature_version=PYTHON_MIN)
    names = {
        each.module if isinstance(each, ast.ImportFrom) else each.names[0].name
        for each in ast.walk(tree)
        if isinstance(each, ast.Import | ast.ImportFrom)
    }
    assert {str(name).partition(".")[0] for name in names} - sys.stdlib_module_names == {"numpy"}
