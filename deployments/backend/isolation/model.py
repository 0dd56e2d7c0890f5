"""A model in a process with an environment of its own.

The backend's schedule stays one: a batch runs there while the thread that runs batches waits.
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from fermata.deployments.backend.execution.runners.runner import Runner, innermost
from fermata.deployments.backend.execution.tensors import held_as
from fermata.deployments.backend.isolation import child as child_file
from fermata.deployments.backend.isolation.child import (
    BARE,
    Channel,
    Question,
    Reply,
    SharedArrays,
    Start,
)
from fermata.deployments.backend.isolation.environment import (
    environ,
    interpreter_of,
    user_folders,
)
from fermata.deployments.models.model import Card
from fermata.deployments.models.sizes import split_size
from fermata.deployments.specs.backend import ModelSpec
from fermata.foundation.errors import ConfigError, ServingError
from fermata.foundation.logs import LOG, fields

END_S = 1.0
"""Time that a process has to end by itself, once it has closed its channel."""
RESTART_S, RESTART_S_MAX = 1.0, 60.0
"""Wait before a start after one that failed or did not last; it doubles."""
LASTING_S = 10.0


class ModelError(RuntimeError):
    """An error of the model itself, as its process describes it."""


class ProcessEndedError(ServingError):
    """The model's process has ended, and all that it kept in memory is lost."""

    grpc_status: ClassVar[str] = "INTERNAL"
    state_lost: ClassVar[bool] = True


def shared_file(name: str) -> int:
    """A file in memory without a name: it is gone with the processes that have it open."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class ModelProcess:
    """One process, from its start to its end."""

    def __init__(self, python: Path, start: Start) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        start = start._replace(parent=os.getpid(), channel=theirs.fileno())
        with theirs:
            self.popen = subprocess.Popen(
                [python, "-I", "-u", child_file.__file__, json.dumps(start)],
                env=environ(),
                stdin=subprocess.DEVNULL,
                pass_fds=(start.channel, start.inputs, start.outputs),
                # A signal from the terminal is the backend's, which ends its batches first.
                start_new_session=True,
            )

    def ask(self, question: Question) -> Reply:
        """The answer to one message; ProcessEndedError where none comes any more."""
        with suppress(OSError):
            self.channel.send(question)
        return self.answer()

    def answer(self) -> Reply:
        """The next message."""
        found = self.channel.receive()
        if found is None:
            raise ProcessEndedError(self.wait())
        return Reply(*found)

    def wait(self) -> str:
        """How it ended; killed if it has closed its channel and does not end."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(END_S)
        self.kill()
        self.channel.connection.close()
        return ending(self.popen.wait())

    def kill(self) -> None:
        """End it with everything that it has started."""
        if self.popen.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)


def ending(code: int) -> str:
    """The end of a process in words."""
    if code >= 0:
        return f"its process ended with exit code {code}"
    with suppress(ValueError):
        return f"its process ended with signal {-code} ({signal.Signals(-code).name})"
    return f"its process ended with signal {-code}"


class IsolatedModel:
    """A model whose process is started again whenever it has ended."""

    def __init__(self, spec: ModelSpec, device: str) -> None:
        """Returns once the model is loaded there; ConfigError where it cannot be."""
        shape = spec.inputs[0].shape if spec.inputs else spec.input_shape or (1,)
        self.card = Card(spec.name, shape, held_as(spec.input_dtype or "FP32"), (-1,))
        self.name = spec.name
        self.environment = spec.environment
        self.keeps_state = spec.keeps_state
        try:
            self.python = interpreter_of(spec.environment)
        except ConfigError as error:
            raise ConfigError(f"{spec.name}: {error}") from None
        self.inputs = SharedArrays(shared_file("inputs"))
        self.outputs = SharedArrays(shared_file("outputs"))
        model, size = split_size(spec.model)
        self.order = Start(
            model,
            size,
            device,
            user_folders(),
            inputs=self.inputs.file,
            outputs=self.outputs.file,
        )
        self.lock = threading.Lock()
        """Held while a question is answered."""
        self.on_change: Callable[[], None] = lambda: None
        """Called from a thread when the process has ended, and when it is back."""
        self.process: ModelProcess | None = None
        """The one that answers; None while there is none."""
        self.starting: ModelProcess | None = None
        self.last: ModelProcess | None = None
        """The one that answered last."""
        self.reason = ""
        """How the last one ended."""
        self.trouble = ""
        """Why it could not be started again."""
        self.held = 0
        self.closing = threading.Event()
        started: Future[None] = Future()
        # The system ends a process with the thread that started it, so this one outlasts it.
        self.keeper = threading.Thread(
            target=self._keep, args=(started,), name=f"keeper of {spec.name}", daemon=True
        )
        self.keeper.start()
        started.result()

    def static_bytes(self) -> int:
        """Memory of its device that torch held there once it was loaded."""
        return self.held

    # The process

    def _keep(self, started: "Future[None]") -> None:
        """Keep a process running until the model is closed."""
        wait_s = 0.0
        while not self.closing.wait(wait_s):
            began_s = time.monotonic()
            try:
                process = self._start()
            # The thread's outermost loop: whoever waits for it would wait for ever.
            except Exception as error:
                self.trouble = str(error)
                if not started.done():
                    self._close_files()
                    started.set_exception(error)
                    return
                LOG.warning(
                    "model not restarted", extra=fields(variant=self.name, reason=str(error))
                )
            else:
                self.trouble, self.process = "", process
                self._tell(started)
                process.popen.wait()
                with self.lock:
                    self.process, self.reason = None, process.wait()
                if not self.closing.is_set():
                    LOG.warning(
                        "model process ended", extra=fields(variant=self.name, reason=self.reason)
                    )
            if self.closing.is_set():
                break
            self._tell(started)
            lasted = time.monotonic() - began_s > LASTING_S
            wait_s = 0.0 if lasted else min(max(RESTART_S, 2 * wait_s), RESTART_S_MAX)
        self._close_files()

    def _start(self) -> ModelProcess:
        try:
            process = self.starting = ModelProcess(self.python, self.order)
        except OSError as error:
            raise ConfigError(f"{self.name}: cannot start {self.python}: {error}") from None
        if self.closing.is_set():
            process.kill()
        where = f"{self.name} in environment {self.environment}"
        try:
            told = process.answer()
        except ProcessEndedError as error:
            raise ConfigError(f"{where}: {error} while it loaded {self.order.model}") from None
        if told.failed:
            process.wait()
            raise ConfigError(f"{where}: {told.failed}: {told.reason}")
        self.held = told.held_bytes
        if told.ends_sequences:
            self.end_sequences = self._end_sequences
        LOG.info("model process started", extra=fields(variant=self.name, pid=process.popen.pid))
        return process

    def _tell(self, started: "Future[None]") -> None:
        if started.done():
            self.on_change()
        else:
            started.set_result(None)

    def _close_files(self) -> None:
        for each in (self.inputs, self.outputs):
            os.close(each.file)

    def close(self) -> None:
        """End its process, and whatever runs there."""
        self.closing.set()
        for process in (self.process, self.starting):
            if process is not None:
                process.kill()

    # Batches

    def __call__(self, batch: Any) -> Any:
        named = isinstance(batch, Mapping)
        with self.lock:
            process = self._ready()
            columns = self.inputs.write_values(batch if named else {BARE: batch})
            told = self._ask(process, Question("run", columns, named))
            found = self.outputs.read_values(told.columns)
        return found if told.named else found[BARE]

    def _end_sequences(self, ids: list[int]) -> None:
        with self.lock:
            self._ask(self._ready(), Question("end_sequences", ids=ids))

    def _ready(self) -> ModelProcess:
        """The process; ProcessEndedError where there is none, or where it lacks the state that the
        one before it had."""
        process, before = self.process, self.last
        self.last = process
        if process is None:
            raise ProcessEndedError(f"{self.trouble or self.reason}; it is being started again")
        if self.keeps_state and before not in (None, process):
            raise ProcessEndedError(f"{self.reason}, and the state of its sequences is lost")
        return process

    def _ask(self, process: ModelProcess, question: Question) -> Reply:
        try:
            told = process.ask(question)
        except ProcessEndedError:
            self.last = None
            raise
        if told.failed:
            base = MemoryError if told.memory else ModelError
            # Named as in its own process: clients and logs see the same error with and without it.
            raise type(told.failed, (base,), {})(told.reason)
        return told

    def check_device(self) -> None:
        """Replace a process that cannot run anything any more; the backend's own device is well."""
        with self.lock:
            process = self.process
            if process is None:
                return
            try:
                self._ask(process, Question("check"))
            except (ModelError, MemoryError, ProcessEndedError):
                process.kill()


def isolated(runner: Runner) -> IsolatedModel | None:
    """The model of a runner, where it has a process of its own."""
    model = getattr(innermost(runner), "model", None)
    return model if isinstance(model, IsolatedModel) else None


def down(runners: Mapping[str, Runner]) -> dict[str, str]:
    """Variants whose process is not there now, each with why it could not be started again."""
    models = {variant: isolated(runner) for variant, runner in runners.items()}
    return {
        variant: model.trouble
        for variant, model in models.items()
        if model is not None and model.process is None
    }
