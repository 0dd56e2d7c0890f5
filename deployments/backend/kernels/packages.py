"""Networks compiled by batch size, in processes of their own, kept on disk for the next start."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fermata.deployments.backend.kernels.compiler import CompileOrder, written
from fermata.deployments.models.cache import cached
from fermata.foundation.errors import ServingError

COMPILE_S_MAX = 600.0
"""A compiler that takes longer is ended; with idle cores a size takes some 20 s."""
POLL_S = 0.2
ERROR = re.compile(r"[\w.]+(Error|Exception|Unsupported)\b.*: ")
"""How Python begins the line of an error."""


class CompilingError(ServingError):
    """A network that could not be compiled."""


class PackageCompiler:
    """Compiles one variant size by size; a package that is on disk already is only loaded."""

    def __init__(
        self,
        order: CompileOrder,
        folder: Path,
        work: Path,
        ended: Callable[[], bool],
        on_load: Callable[[], None] = lambda: None,
    ) -> None:
        self.order = order
        """All but what differs from size to size."""
        self.folder = folder
        self.work = work
        """Where the compiler keeps its own files, which sizes share."""
        self.ended = ended
        """Whether nobody wants the result any more."""
        self.on_load = on_load
        """Called before compiled code comes into this process."""

    def __call__(self, network: Any, taken: Any, size: int) -> Callable[..., Any]:
        """The network for batches of this size; `taken` is an input of it of any size."""
        import torch

        if isinstance(network, torch.jit.ScriptModule):
            raise CompilingError("TorchScript cannot be exported")
        order = self._order(taken, size)
        path = cached(order.path, lambda part: self._compile(replace(order, path=part)))
        inductor: Any = torch._inductor
        self.on_load()
        try:
            # The other mode asks events whether batches have ended, which no capture allows.
            loaded = inductor.aoti_load_package(os.fspath(path), run_single_threaded=True)
        except Exception:
            # The next start makes it anew.
            path.unlink(missing_ok=True)
            raise
        found: Callable[..., Any] = loaded
        return found

    def has(self, size: int) -> bool:
        """Whether the package of a size is there."""
        return self._path(size).is_file()

    def _path(self, size: int) -> Path:
        return self.folder / f"{size}-{self.order.weights}.pt2"

    def _order(self, taken: Any, size: int) -> CompileOrder:
        import torch

        channels_last = taken.dim() == 4 and taken.is_contiguous(memory_format=torch.channels_last)
        if not channels_last and not taken.is_contiguous():
            raise CompilingError("its input is laid out in another way than usual")
        return replace(
            self.order,
            shape=(size, *taken.shape[1:]),
            dtype=str(taken.dtype).removeprefix("torch."),
            channels_last=channels_last,
            path=self._path(size),
        )

    def _compile(self, order: CompileOrder) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "fermata.deployments.backend.kernels.compiler"],
                env=_environment(self.work),
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                assert process.stdin is not None
                # It may have ended already, and says why.
                with suppress(BrokenPipeError), process.stdin as given:
                    given.write(written(order))
                code = self._wait(process)
            finally:
                _end(process)
            if code:
                said.seek(0)
                raise CompilingError(_reason(said.read().decode(errors="replace"), code))

    def _wait(self, process: "subprocess.Popen[bytes]") -> int:
        end_s = time.monotonic() + COMPILE_S_MAX
        while time.monotonic() < end_s:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(POLL_S)
            if self.ended():
                raise CompilingError("the model was unloaded")
        raise CompilingError(f"compiling has taken more than {COMPILE_S_MAX:g} s")


def _reason(said: str, code: int) -> str:
    """The line that names the error; torch adds hints to its own users behind it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or [f"the compiler ended with {code}"])[-1]


def _environment(work: Path) -> dict[str, str]:
    """Few threads: cores that idle now may be wanted by batches in a moment."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TORCHINDUCTOR_CACHE_DIR": os.fspath(work),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End it with all that it has started, as a C++ compiler."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
