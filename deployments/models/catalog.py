"""Every model by one name: `digits:small`, `imagenet:lite0@224`, `module:function`."""

from collections.abc import Callable
from dataclasses import dataclass

from fermata.deployments.models import detector, digits, imagenet, text
from fermata.deployments.models.detectors import objects
from fermata.deployments.models.model import Card, Model, pick
from fermata.deployments.models.network import (
    load_function,
    load_torchvision,
    load_transformers,
    load_transformers_named,
)
from fermata.deployments.models.signatures import is_file
from fermata.deployments.models.sizes import split_size
from fermata.deployments.models.words import pp_ocr
from fermata.foundation.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelName:
    """`family:name@size` in parts; for a Python function, family and name are its path.

    For a file, `family` is empty and `name` is its path.
    """

    family: str
    name: str
    size: int | None = None
    """Side of its images in pixels, or its length in tokens."""


Loader = Callable[[str, int | None, str], Model]

FAMILIES: dict[str, Loader] = {
    "digits": lambda name, _size, device: digits.load(name, device),
    "imagenet": imagenet.load,
    "text": text.load,
    "faces": detector.load,
    "objects": objects.load,
    "words": pp_ocr.load,
    "torchvision": load_torchvision,
    "transformers": load_transformers,
}
NAMED: dict[str, Loader] = {"transformers": load_transformers_named}
"""Families whose models take arrays by name too."""
DESCRIPTIONS: dict[str, Callable[[str, int | None], Card]] = {
    "digits": lambda name, _size: digits.describe(name),
    "imagenet": imagenet.describe,
    "text": text.describe,
    "faces": detector.describe,
    "objects": objects.describe,
    "words": pp_ocr.describe,
}
NAMES = {
    "digits": digits.NAMES,
    "imagenet": imagenet.NAMES,
    "text": text.NAMES,
    "faces": detector.NAMES,
    "objects": objects.NAMES,
    "words": pp_ocr.NAMES,
}
"""Members of each family; torchvision's names are known once it is imported."""
EMBEDDED = (
    *(f"digits:{name}" for name in digits.NAMES),
    *(f"imagenet:{name}@{size}" for name, size in imagenet.NATIVE.items()),
    *(f"text:{name}@{text.LENGTH}" for name in text.NAMES),
    *(f"faces:{name}@{detector.SIZE}" for name in detector.NAMES),
    *(f"objects:{name}@{size}" for name in objects.NAMES for size in objects.SIZES),
    *(f"words:{name}@{stage.size}" for name, stage in pp_ocr.STAGES.items()),
)
"""Models with real weights that need nothing but installed packages."""


def parse_name(given: str) -> ModelName:
    """The parts of a model's name, or a ConfigError in one line."""
    if is_file(given):
        return ModelName("", *split_size(given))
    family, colon, rest = given.partition(":")
    if not colon or not family or not rest:
        raise ConfigError(
            f"model {given!r} must be FAMILY:NAME[@SIZE], module:function[@SIZE] or a file; "
            f"families: {', '.join(FAMILIES)}"
        )
    if family not in FAMILIES:
        return ModelName(family, *split_size(rest))
    name, at, size = rest.partition("@")
    if at and not (size.isdecimal() and len(size) < 6):
        raise ConfigError(f"model {given!r}: size {size!r} must be a whole number, as in @224")
    if at and family == "digits":
        raise ConfigError(f"model {given!r}: digits are always 8x8; leave out @{size}")
    if family in NAMES:
        pick(family, name, NAMES[family])
    return ModelName(family, name, int(size) if at else None)


def describe(given: str) -> Card | None:
    """The card of an embedded model without loading it; None if it has to be loaded for that."""
    family = given.partition(":")[0]
    if family not in DESCRIPTIONS:
        return None
    parts = parse_name(given)
    return DESCRIPTIONS[family](parts.name, parts.size)


def open_model(
    given: str,
    device: str = "cpu",
    input_shape: tuple[int, ...] | None = None,
    named: bool = False,
) -> Model:
    """A model ready to run on `device`; `input_shape` is for functions whose model has no card.

    `named`: it takes its inputs by name.
    """
    parts = parse_name(given)
    loader = FAMILIES.get(parts.family)
    if loader is None:
        path = f"{parts.family}:{parts.name}"
        return load_function(path, input_shape, device, parts.size)
    if named and parts.family not in NAMED:
        raise ConfigError(f"model {given!r} takes one array: give input in place of inputs")
    try:
        if named:
            return NAMED[parts.family](parts.name, parts.size, device)
        return loader(parts.name, parts.size, device)
    except ModuleNotFoundError as error:
        raise ConfigError(f"model {given!r} needs {error.name}; run make models") from None
