"""An application as a file declares it: the same section in serving files and in scenarios."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from fermata.applications.classes import ClassesOptions
from fermata.applications.clients import ClientsSpec
from fermata.applications.content import ContentSpec
from fermata.applications.server_options import BoxOptions, CanarySpec, InputSpec, TensorOptions
from fermata.applications.shapes import ShapesOptions
from fermata.applications.variant import Variant
from fermata.foundation.sections import (
    Count,
    Key,
    NotNegative,
    Resolved,
    Served,
    Simulated,
)
from fermata.profiles.profile import Profile
from fermata.router.policies.application import ApplicationSpec


@dataclass(frozen=True, slots=True)
class Application(ApplicationSpec):
    """A task with an SLO: what clients call a model."""

    variants: tuple[Variant, ...]
    """The models that can serve it."""
    class_options: Annotated[ClassesOptions | None, Key("classes")] = None
    """Its classes, for policies that look at what a request holds; see docs/data-aware.md."""
    version: Served[Count] = 1
    """Versions of one name serve side by side; requests that name none go to the highest one that
    is loaded."""
    canary: Served[CanarySpec | None] = None
    """Try it out first; absent: it gets every request that names no version."""
    load: Served[Literal["start", "asked"]] = "start"
    """`asked`: not before a client asks for it (RepositoryModelLoad; needs `repository: open`)."""
    input: Served[InputSpec | None] = None
    """Content of one request, as one array; an embedded model knows its own."""
    inputs: Served[tuple[TensorOptions, ...]] = ()
    """Inputs by name, in place of `input`: the model gets a mapping of names to arrays. ONNX,
    exported and TorchScript files and transformers know their own."""
    outputs: Served[tuple[TensorOptions, ...]] = ()
    """Outputs by name, for clients that ask; the same models know their own."""
    shapes: ShapesOptions | None = None
    """Buckets of its requests' sizes, where a dimension varies; absent: all are planned alike."""
    boxes: Served[BoxOptions | None] = None
    """Boxes among its outputs, which clients get in pixels of their own frames; an embedded
    detector knows its own."""
    state: Served[Mapping[str, str]] = field(default_factory=dict)
    """Inputs that hold the state of a sequence, each with the output that hands back the next one.
    Frontends carry it, so that any backend may run the next request."""
    labels: Served[tuple[str, ...]] = ()
    """Names of the classes of the first output, for clients that ask for them; an embedded model
    knows its own."""
    finite_outputs: Served[bool] = False
    """Requests whose outputs hold a NaN or an infinity fail. They are counted in any case."""
    environment: Served[str] = ""
    """Virtual environment whose libraries its models need, by its folder or its python. Each of
    them, a `module:function`, then runs in a process of its own there, within the same schedule."""
    weight: Simulated[NotNegative] = 1.0
    """Its part of the whole rate, relative to others."""
    rows: Simulated[tuple[Count, ...]] = ()
    """Rows of its requests, drawn evenly from these; one each where absent."""
    sequence_length: Simulated[Count] = 0
    """Requests of each sequence of a client, with `sequences`; where absent, they do not end."""
    copies: Simulated[Count] = 1
    """So many applications like this one, named with -0, -1, and so on."""
    clients: Simulated[tuple[ClientsSpec, ...]] = ()
    """Streams with an SLO and a frame rate of their own; servers see their own clients."""
    content: Resolved[ContentSpec | None] = None
    """How requests of a simulation hold what they hold."""
    bucket: Resolved[int] = 0
    """The bucket that it stands for, where it is one of several; 0: it is whole."""

    @property
    def slo_ns_max(self) -> int:
        """The loosest deadline of any request."""
        return max([self.limit_ns, *(client.slo_ns for client in self.clients)])

    @property
    def declared_rps(self) -> float:
        """Requests a second of its clients, as far as their frame rates are given."""
        return sum(group.count * (group.fps or 0.0) for group in self.clients)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Run times of each variant, where all of them are known."""
        found = [variant.profile for variant in self.variants]
        known = [profile for profile in found if profile is not None]
        assert len(known) == len(found), f"{self.name} has unmeasured variants"
        return tuple(known)
