"""Models of a backend process and the device that runs them, as its configuration resolves them."""

from dataclasses import dataclass, replace
from typing import Literal

from fermata.deployments.specs.served_model import ImageSpec, TensorSpec

Measure = Literal["once", "always", "never"]
"""Measurement of run times: `once` keeps those of the first start on a machine."""

Kernels = Literal["auto", "compiled", "plain"]
"""`auto`: on a GPU, ways to run a network are tried while it serves, and the fastest is used.
`compiled`: networks that a compiler has made are among them."""

LOADED = "loaded"
"""The last step of a backend's start."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One variant to load."""

    name: str
    model: str
    """`emulated`, a path to a TorchScript (.pt), exported (.pt2) or ONNX (.onnx) file, or a name
    that `fermata.deployments.models.catalog` knows, `module:function` among them; all with or
    without `@SIZE`."""
    batch_size_max: int = 64
    input_shape: tuple[int, ...] | None = None
    """Shape of one request's input, which files and plain functions do not describe themselves."""
    input_dtype: str = ""
    """Type of the input on the link; empty: as on the model's card."""
    table_ns: tuple[int, ...] = ()
    """Run times of an emulated model for batches of 1, 2, 3 and so on."""
    static_bytes: int = 0
    """Memory that an emulated model takes, by its profile."""
    gpu_lock: str = ""
    """File whose lock stands for the GPU that processes with emulated models share."""
    frames: ImageSpec | None = None
    """Set if pictures come in any size, to be fitted to the model's, and normalised, here."""
    picture: ImageSpec | None = None
    """Set if encoded pictures come here, to be decoded and fitted where they run."""
    inputs: tuple[TensorSpec, ...] = ()
    """Its inputs, where it takes arrays by name; empty: it takes one array."""
    outputs: tuple[TensorSpec, ...] = ()
    """Outputs that an emulated model answers with; empty: one number."""
    precision: str = "auto"
    """Floats that a torch network computes with: `fp32`, `fp16`, `bf16`, or `auto`, which is
    `fp16` on a GPU and leaves the weights alone elsewhere."""
    keeps_state: bool = False
    """It keeps the state of sequences: no batch of it runs twice."""
    finite_outputs: bool = False
    """A batch whose outputs hold a NaN or an infinity has failed."""
    environment: str = ""
    """Virtual environment that it runs in, in a process of its own; empty: in the backend's."""
    bucket: int = 0
    """The shape bucket that it runs: dimensions that vary have at most this size; 0: any."""
    pad: bool = False
    """Inputs are padded to the size of the bucket, and answers are cut back."""
    mask: str = ""
    """The input that is 1 where a request has data, and is made where it is left out."""

    def whole(self) -> "ModelSpec":
        """The same for every bucket of a variant: they run one model."""
        stem = self.name.removesuffix(f"[{self.bucket}]")
        return replace(self, name=stem, bucket=0, batch_size_max=0, table_ns=())

    def at_bucket(self) -> "ModelSpec":
        """The variant for inputs that all have the size of the bucket."""
        if not self.bucket:
            return self
        shape = self.input_shape
        return replace(
            self,
            input_shape=None if shape is None else _sized(shape, self.bucket),
            inputs=tuple(
                replace(each, shape=_sized(each.shape, self.bucket)) for each in self.inputs
            ),
        )


def _sized(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple(size if side < 0 else side for side in shape)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Variants that a backend may hold, and the device that runs them."""

    specs: tuple[ModelSpec, ...]
    device: str = "auto"
    """`cuda`, `cpu`, `emulated`, or `auto` for whichever there is."""
    kind: str = ""
    """Name of this kind of device; empty: as the device is called."""
    memory_bytes_max: int | None = None
    """Memory that all loaded models may take together; None: no limit."""
    swap: bool = False
    """Hold one model at a time; a batch of another one waits until that is loaded."""
    threads: int = 1
    """Cores that run a model on a CPU."""
    measure: Measure = "once"
    kernels: Kernels = "auto"
    on_demand: frozenset[str] = frozenset()
    """Variants that are loaded when a client asks for them."""
