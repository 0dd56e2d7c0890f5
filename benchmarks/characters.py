"""Pictures of characters in the fonts of this machine; no font both trains and judges."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from benchmarks.sneakpeek_setting import Pictures, Task, Variant

CHARACTERS = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    "ΔΘΞΣΨΩαβγδεζηθλμξπσφχψωБДЖЗИЙЛФЦЧШЩЪЫЬЭЮЯ"
)
SIDE = 28
VERSIONS = 4
"""Pictures of each character in each font: shifted, turned and scaled differently."""
NOISE = 0.12
FOLDERS = (Path("/usr/share/fonts"),)
STIX = ("STIXGeneral.ttf", "STIXGeneralBol.ttf", "STIXGeneralItalic.ttf", "STIXGeneralBolIta.ttf")


def fonts() -> list[Path]:
    """Fonts of text that have all characters, in a fixed order."""
    found = [path for folder in FOLDERS for path in folder.rglob("DejaVuS*.ttf")]
    plot = find_spec("matplotlib")
    if plot is not None and plot.origin is not None:
        folder = Path(plot.origin).parent / "mpl-data" / "fonts" / "ttf"
        found += [folder / name for name in STIX if (folder / name).is_file()]
    return sorted(found, key=lambda path: path.name)


def drawn(path: Path, rng: np.random.Generator, side: int = SIDE) -> Iterator[NDArray[np.float32]]:
    """Every character once, white on black, from 0 to 1."""
    font = ImageFont.truetype(str(path), round(0.72 * side))
    for character in CHARACTERS:
        picture = Image.new("L", (side, side))
        shift = rng.uniform(-0.06, 0.06, 2) * side
        middle = (side / 2 + shift[0], side / 2 + shift[1])
        ImageDraw.Draw(picture).text(middle, character, 255, font, anchor="mm")
        turned = picture.rotate(float(rng.uniform(-7, 7)), Image.Resampling.BILINEAR)
        yield np.asarray(turned, np.float32) / np.float32(255)


def characters() -> Pictures:
    """The set in three parts that share no font, and its applications."""
    rng = np.random.default_rng(41)
    # In any order but that of names, in which every fourth font is an italic one.
    paths = [fonts()[place] for place in rng.permutation(len(fonts()))]
    images: list[NDArray[np.float32]] = []
    labels: list[int] = []
    part: list[int] = []
    for number, path in enumerate(paths):
        for _ in range(VERSIONS):
            images.extend(drawn(path, rng))
            labels.extend(range(len(CHARACTERS)))
            # Of four fonts in a row two train, one profiles and one judges.
            part.extend([(0, 1, 0, 2)[number % 4]] * len(CHARACTERS))
    places = np.array(part)
    parts = tuple(np.flatnonzero(places == each) for each in range(3))
    return Pictures(
        "characters",
        np.stack(images),
        np.array(labels, np.int64),
        (parts[0], parts[1], parts[2]),
        NOISE,
        tasks(),
    )


def tasks() -> tuple[Task, ...]:
    """One application with all characters as often, one in which few are most of the text."""
    count = len(CHARACTERS)
    classes = tuple((each,) for each in range(count))
    even = (1 / count,) * count
    ranks = 1 / np.arange(1, count + 1)
    rare = np.random.default_rng(43).permutation(ranks / ranks.sum())
    variants = (Variant(5, 6, 4, (48,)), Variant(18, 22, 2, (192,)))
    return (
        Task("even", classes, even, even, variants),
        Task("text", classes, tuple(rare.tolist()), even, variants),
    )
