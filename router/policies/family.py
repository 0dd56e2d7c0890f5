"""An application as its policy sees it: an SLO and the variants it may choose from."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fermata.router.policies.sneakpeek.classes import Classes, shortfalls


@dataclass(frozen=True, slots=True)
class Family:
    """The variants of one application, in the order of the configuration."""

    application: int
    """The engine's number, as in `Request.application`."""
    name: str
    slo_ns: int
    variants: tuple[int, ...]
    """The engine's numbers, as in `Batch.variant`."""
    serving: int
    """The variant that runs where the policy does not choose."""
    accuracy: tuple[float, ...] = ()
    """Accuracy of each variant; policies that choose are built only where all are known."""
    input_sizes: tuple[int, ...] = ()
    """The side of the picture that each variant takes; 0 where it is not a picture."""
    accuracy_floor: float = 0.0
    """Variants below it are never chosen."""
    classes: Classes | None = None
    """Recall by class and who peeks at requests, where that is known."""
    weak: frozenset[int] = field(init=False, default=frozenset())
    """Places of variants that may miss a class's recall floor: not for requests that may be of that
    class, so not for those of which nothing is known."""

    def __post_init__(self) -> None:
        classes = self.classes
        if classes is not None and classes.recall_floors:
            weak = [place for place in range(len(self.variants)) if any(shortfalls(classes, place))]
            object.__setattr__(self, "weak", frozenset(weak))

    def choices(self) -> list[int]:
        """Places of the variants that may serve a request of which nothing is known. Where none
        is sure to keep every recall floor, those that reach the accuracy floor."""
        reached = enumerate(self.accuracy)
        above = [place for place, accuracy in reached if accuracy >= self.accuracy_floor]
        return [place for place in above if place not in self.weak] or above

    def above(self, floor: float) -> frozenset[int]:
        """The variants that reach an accuracy; those of unknown accuracy do not."""
        return frozenset(
            variant
            for variant, accuracy in zip(self.variants, self.accuracy, strict=False)
            if accuracy >= floor
        )


def alone(variants: Iterable[int], slo_ns: int = 0) -> list[Family]:
    """Applications 0, 1, 2 and so on, each with one variant."""
    return [
        Family(application, f"application {application}", slo_ns, (variant,), variant)
        for application, variant in enumerate(variants)
    ]
