"""Errors for a lack of memory, and the release of memory before a retry."""

import sys
import traceback
from collections.abc import Iterator
from typing import Any, ClassVar

from fermata.foundation.errors import ServingError

SIGNS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to allocate memory",
    "status_alloc_failed",
)
"""Messages of CUDA, torch on a CPU, the C library, onnxruntime, and cuBLAS and cuDNN.

They come as plain RuntimeErrors, as does everything that TorchScript raises."""


class NoRoomError(ServingError):
    """A model does not fit the accelerator now; it may fit later."""

    grpc_status: ClassVar[str] = "RESOURCE_EXHAUSTED"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it was raised in place of, reports a lack of memory."""
    return any(_reports_memory(each) for each in _chain(error))


def _reports_memory(error: BaseException) -> bool:
    # Our own errors are for an operator; a smaller batch would not help.
    if isinstance(error, ServingError):
        return False
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(sign in message for sign in SIGNS)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def drop_references(error: BaseException) -> None:
    """Clear the frames of an error: they would keep every tensor of the failed run."""
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)


def release_memory() -> None:
    """Release memory that torch caches: it would not fit another size."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
