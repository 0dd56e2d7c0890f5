"""A SneakPeek model with what a backend has to know of the inputs that it looks at."""

from dataclasses import dataclass

from fermata.deployments.sneakpeek.store import SneakPeekModel
from fermata.deployments.specs.served_model import ImageSpec


@dataclass(frozen=True, slots=True)
class PlacedLook:
    """Looks at requests of one application, taken on backends."""

    model: SneakPeekModel
    picture: ImageSpec | None = None
    """How encoded pictures become the application's input; None: none come."""
    shape: tuple[int, ...] = ()
    """Shape of that input."""
    dtype: str = "uint8"
    """Its type, as numpy calls it."""

    @property
    def takes_pixels(self) -> bool:
        """Whether pictures are embedded as pixels, not normalised as the model's input is."""
        return self.dtype == "uint8" or self.model.scale is not None
