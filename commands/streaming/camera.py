"""One stream as options, or a line of a file of cameras, describe it."""

import math
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from socket import gethostname

from fermata.clients.access import Access
from fermata.clients.describe import ModelDescription, describe
from fermata.clients.frames import PICTURES, check_source, is_live
from fermata.clients.network.emulated_link import BandwidthTrace
from fermata.clients.stream import StreamOptions
from fermata.clients.wire.errors import WireError
from fermata.commands.streaming.uplinks import read_uplink
from fermata.deployments.models.video import NAMES, bundled_video
from fermata.foundation import validation
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse
from fermata.foundation.units import ms


@dataclass(frozen=True, slots=True)
class Camera:
    """One stream; fields are the keys of a line in a file of cameras."""

    name: str = ""
    """Names the stream to the server."""
    source: str = ""
    model: str = "imagenet"
    fps: float | None = None
    """None: the source's own pace; 0: as fast as answers come."""
    slo_ms: float | None = None
    """None: the model's own."""
    adapt: bool = False
    accuracy_floor: float = 0.0
    variant: str = ""
    uplink: BandwidthTrace | None = None
    """Emulated; None: the real one alone."""

    def check(self) -> None:
        """Refuse what cannot be, before anybody looks for a server."""
        if self.fps is not None and not 0 <= self.fps < math.inf:
            raise ConfigError(f"fps={self.fps:g}: give 0 or more")
        if self.slo_ms is not None and not 0 < self.slo_ms < math.inf:
            raise ConfigError(f"slo_ms={self.slo_ms:g}: give more than 0")
        try:
            check_source(self.source)
        except WireError as error:
            raise ConfigError(str(error)) from None
        if self.adapt and not self.fps:
            raise ConfigError("adapt needs the frame rate: give --fps above 0")
        path = Path(self.source)
        if self.adapt and (path.is_dir() or path.suffix.lower() in PICTURES):
            raise ConfigError(f"adapt needs frames that it can resize: {self.source!r} is no video")

    def options(self, found: ModelDescription, top: int, access: Access) -> StreamOptions:
        """How its frames are sent to a model; `top` classes are named for each."""
        slo_ns = found.slo_ns if self.slo_ms is None else ms(self.slo_ms)
        if slo_ns <= 0:
            raise ConfigError(f"model {found.name!r} has no SLO: give --slo-ms above 0")
        return StreamOptions(
            slo_ns=slo_ns,
            fps=self.fps,
            client=self.name or (f"{gethostname()}-{os.getpid()}" if self.adapt else ""),
            input=found.input,
            output=found.output,
            classes=top if found.labels and found.output and not found.boxes else 0,
            adapt=self.adapt,
            boxes=found.boxes,
            boxes_axis=found.boxes_axis,
            boxes_format=found.boxes_format,
            answer=found.answer,
            stage_boxes=found.stage_boxes,
            fit=found.fit,
            accuracy_floor=self.accuracy_floor,
            variant=self.variant,
            access=access,
            uplink=self.uplink,
        )


KEYS = tuple(each.name for each in fields(Camera))


def read_cameras(path: Path | str, usual: Camera) -> list[Camera]:
    """The cameras of a file; what a line leaves out is the `usual` one's."""
    path = Path(path)
    given = validation.fields("", str(path), validation.read_yaml(path), ("cameras",), path.parent)
    found: dict[str, Camera] = {}
    for row in given.rows("cameras", KEYS):
        camera = _camera(row, usual)
        if camera.name in found:
            raise ConfigError(f"{path}: two cameras are named {camera.name!r}: give each its own")
        try:
            camera.check()
        except ConfigError as error:
            raise ConfigError(f"{path}: camera {camera.name!r}: {error}") from None
        found[camera.name] = camera
    if not found:
        raise ConfigError(f"{path}: names no camera: list them under `cameras`")
    return list(found.values())


def _camera(row: validation.Fields, usual: Camera) -> Camera:
    camera = replace(
        usual,
        name=row.text("name"),
        source=_beside(row.beside, row.text("source")),
        model=row.text("model", usual.model),
        adapt=row.flag("adapt", usual.adapt),
        variant=row.text("variant", usual.variant),
    )
    floor = row.fraction("accuracy_floor")
    return replace(
        camera,
        fps=row.number("fps") if row.has("fps") else usual.fps,
        slo_ms=row.positive("slo_ms") or usual.slo_ms,
        accuracy_floor=usual.accuracy_floor if floor is None else floor,
        uplink=_uplink(row) or usual.uplink,
    )


def _uplink(row: validation.Fields) -> BandwidthTrace | None:
    given = row.data.get("uplink")
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        refuse(row.name("uplink"), given, "must be Mbit/s above 0, or a CSV file")
    return read_uplink(str(given), row.beside)


def _beside(folder: Path | None, source: str) -> str:
    """Files are found beside the file that names them."""
    if folder is None or is_live(source) or source in NAMES:
        return film(source)
    return str(folder / source)


def film(source: str) -> str:
    """The path of a bundled film; anything else is what it says."""
    if source not in NAMES or Path(source).exists():
        return source
    return str(bundled_video(source))


def model_of_pictures(server: str, model: str, access: Access) -> ModelDescription:
    """Asks the server for it, and refuses one that takes something else."""
    found = describe(server, model, access)
    refuse_other_inputs(found)
    return found


def refuse_other_inputs(found: ModelDescription) -> None:
    """Refuse a model that takes no pictures."""
    if found.takes != "pictures":
        kind = found.takes if found.takes == "text" else f"{found.datatype} tensors"
        raise ConfigError(f"model {found.name!r} takes {kind}, not pictures")
