"""Memory that does not suffice: how it shows, and how to have it back before another try."""

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
"""In the words of CUDA, torch on a CPU, the C library, onnxruntime, and cuBLAS and cuDNN: those
come as plain RuntimeErrors, as does everything that TorchScript raises."""


class NoRoomError(ServingError):
    """A model does not fit the accelerator; there may be room later."""

    grpc_status: ClassVar[str] = "RESOURCE_EXHAUSTED"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it, or what it was raised in place of, is a library's word for that."""
    return any(_says_so(each) for each in _chain(error))


def _says_so(error: BaseException) -> bool:
    # What we have said ourselves is for an operator; a smaller batch would not help.
    if isinstance(error, ServingError):
        return False
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(sign in said for sign in SIGNS)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def drop_references(error: BaseException) -> None:
    """Have it hold on to nothing: its frames keep every tensor of the run that failed, for as long
    as anybody keeps the error."""
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)


def release_memory() -> None:
    """What torch keeps for later would not do for another size."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
