"""Pictures of words: lines of text of many sizes, fonts, colours and angles, drawn from a seed."""

import random
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fermata.foundation.errors import ConfigError

SIZES = ((640, 480), (640, 360), (800, 600), (480, 640), (1024, 768), (1280, 720), (750, 501))
WORDS = """
harbour station ticket Monday coffee library street north room market open closed exit
garden winter PLATFORM bread letter price yellow river bridge tower school morning
evening Baker Avenue museum castle hotel airport 42 1984 2.50 B12 island window kitchen
silver forest Queen engine paper summer valley doctor orange PARKING theatre police
bakery
"""
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "DejaVuSerif-Italic")
"""matplotlib's; Pillow's own is drawn with as well."""
NOISE = 6


LINES_MAX = 6
TILTED = 0.2
"""Share of lines at an angle."""
HEADLONG = 0.1
"""Share of lines that stand on their heads."""


def draw(seed: int) -> Image.Image:
    """The picture of a seed."""
    rng = random.Random(seed)
    width, height = rng.choice(SIZES)
    paper = _paper(rng, width, height)
    top = rng.randint(4, height // 8)
    for _ in range(rng.randint(1, LINES_MAX)):
        tile = _line(rng, max(width, height))
        if tile.width >= width or top + tile.height >= height:
            break
        paper.paste(tile, (rng.randint(0, width - tile.width), top), tile)
        top += tile.height + rng.randint(4, height // 10)
    return paper


def _paper(rng: random.Random, width: int, height: int) -> Image.Image:
    """Light from one side, with a little noise."""
    colours = np.array([[rng.randint(150, 250) for _ in range(3)] for _ in range(2)])
    shade = np.linspace(0, 1, width)[None, :, None]
    pixels = colours[0] * (1 - shade) + colours[1] * shade
    noise = np.random.default_rng(rng.randint(0, 1 << 30))
    noisy = pixels + noise.integers(-NOISE, NOISE + 1, (height, width, 1))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def _line(rng: random.Random, side: int) -> Image.Image:
    size = rng.randint(18, 44) * side // 640
    place = rng.choice(("", *FONTS))
    font = ImageFont.truetype(font_file(place), size) if place else ImageFont.load_default(size)
    text = " ".join(rng.choices(WORDS.split(), k=rng.randint(1, 3)))
    _, _, right, bottom = font.getbbox(text)
    tile = Image.new("RGBA", (int(right) + 12, int(bottom) + 12))
    ink = tuple(rng.randint(0, 90) for _ in range(3))
    ImageDraw.Draw(tile).text((6, 6), text, font=font, fill=ink)
    way = rng.random()
    angle = 180.0 if way < HEADLONG else 0.0
    if way > 1 - TILTED:
        angle = rng.uniform(-15, 15)
    return tile.rotate(angle, Image.Resampling.BICUBIC, expand=True)


def font_file(name: str) -> Path:
    """A font that matplotlib brings along."""
    found = find_spec("matplotlib")
    if found is None or found.origin is None:
        raise ConfigError("pictures of words need matplotlib's fonts: pip install matplotlib")
    return Path(found.origin).parent / "mpl-data/fonts/ttf" / f"{name}.ttf"
