"""Compiles a network for one batch size by AOTInductor; the main module of a process of its own.

Compiling takes the interpreter for tens of seconds, which no batch could wait for. So it is done
apart and at low priority. The backend loads what comes of it, which needs no Python to run.
"""

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fermata.deployments.backend.isolation.child import end_with
from fermata.deployments.backend.models.loaders import open_network
from fermata.deployments.specs.backend import ModelSpec
from fermata.foundation.errors import ConfigError

NICENESS = 19
OPTIONS = {
    # Weights are constants: batch norms go into convolutions, which get the layout that they want.
    "freezing": True,
    # Kernels are launched by a CUDA graph, and never by the code that this would speed up.
    "aot_inductor.compile_wrapper_opt_level": "O0",
}


@dataclass(frozen=True, slots=True)
class CompileOrder:
    """A network to compile, what it is given, and where the package goes."""

    spec: ModelSpec
    device: str
    weights: str
    """Digest of its weights as they are served."""
    parent: int
    """Process that waits for it."""
    shape: tuple[int, ...] = ()
    """Shape of the network's input, batch included."""
    dtype: str = ""
    """Its type, as torch names it."""
    channels_last: bool = False
    path: Path = Path()


def written(order: CompileOrder) -> bytes:
    """The order as its process reads it."""
    return msgspec.msgpack.encode(order, enc_hook=os.fspath)


def read(data: bytes) -> CompileOrder:
    return msgspec.msgpack.decode(data, type=CompileOrder, dec_hook=lambda kind, told: kind(told))


def weights_digest(network: Any) -> str:
    """Digest of every weight and constant, which a package has in it."""
    import torch

    found = hashlib.sha256()
    for name, weight in (*network.named_parameters(), *network.named_buffers()):
        held = weight.detach().cpu().contiguous().reshape(-1)
        found.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        found.update(held.view(torch.uint8).numpy())
    return found.hexdigest()[:16]


def compile_package(order: CompileOrder) -> None:
    """Write the package; whatever torch raises where it cannot be compiled."""
    import torch
    from torch import _inductor

    _find_cuda()
    model = open_network(order.spec, order.device)
    network: Any = model.module
    if weights_digest(network) != order.weights:
        raise ConfigError("its weights are others each time that it is loaded")
    if order.channels_last:
        for weight in (*network.parameters(), *network.buffers()):
            if weight.dim() == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    # A package must have this end.
    made = order.path.with_name(order.path.name + ".pt2")
    inductor: Any = _inductor
    # Freezing is left out where gradients could be asked for.
    with torch.no_grad(), model.around():
        program = torch.export.export(network, (_sample(torch, order),), strict=False)
        inductor.aoti_compile_and_package(
            program, package_path=os.fspath(made), inductor_configs=OPTIONS
        )
    made.replace(order.path)


def _sample(torch: Any, order: CompileOrder) -> Any:
    dtype = getattr(torch, order.dtype)
    made = torch.zeros(order.shape, dtype=dtype, device=order.device)
    if dtype.is_floating_point:
        made = torch.rand(order.shape, device=order.device).to(dtype)
    if order.channels_last:
        return made.contiguous(memory_format=torch.channels_last)
    return made


def _find_cuda() -> None:
    """Tell the C++ compiler where CUDA is; a machine may have its driver for programs alone."""
    from torch.utils import cpp_extension

    home = cpp_extension.CUDA_HOME
    if home is None:
        return
    os.environ.setdefault("CUDA_HOME", home)
    stubs = [f"{home}/{folder}/stubs" for folder in ("lib64", "lib")]
    given = os.environ.get("LIBRARY_PATH", "")
    os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, (given, *stubs)))


def main() -> None:
    """Do what standard input asks for; the last line of an error says why it failed."""
    order = read(sys.stdin.buffer.read())
    end_with(order.parent)
    os.nice(NICENESS)
    compile_package(order)


if __name__ == "__main__":
    main()
