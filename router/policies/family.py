"""An application as its policy sees it: its options, and the engine's numbers of its variants."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fermata.router.core.events import Request
from fermata.router.policies.application import ApplicationSpec, VariantSpec
from fermata.router.policies.sneakpeek.classes import Classes, shortfalls


@dataclass(frozen=True, slots=True)
class Family:
    """The variants of one application, in the order of the configuration."""

    application: int
    """The engine's number, as in `Request.application`."""
    spec: ApplicationSpec
    """Every option of the application; a policy reads its own here."""
    variants: tuple[int, ...]
    """The engine's numbers, as in `Batch.variant`."""
    serving: int = field(init=False)
    """The variant that runs where the policy does not choose."""
    accuracy: tuple[float, ...] = field(init=False)
    """Accuracy of each variant; policies that choose are built only where all are known."""
    input_sizes: tuple[int, ...] = field(init=False)
    """The side of the picture that each variant takes; 0 where it is not a picture."""
    weak: frozenset[int] = field(init=False)
    """Places of variants that may miss a class's recall floor: not for requests that may be of that
    class, so not for those of which nothing is known."""

    def __post_init__(self) -> None:
        spec, classes = self.spec, self.spec.classes
        weak: list[int] = []
        if classes is not None and classes.recall_floors:
            weak = [place for place in range(len(self.variants)) if any(shortfalls(classes, place))]
        object.__setattr__(self, "serving", self.variants[spec.serving_place])
        object.__setattr__(self, "accuracy", spec.accuracies)
        object.__setattr__(self, "input_sizes", tuple(each.input_size for each in spec.variants))
        object.__setattr__(self, "weak", frozenset(weak))

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def slo_ns(self) -> int:
        return self.spec.slo_ns

    @property
    def reply_ns(self) -> int:
        """Time that requests have lost to the reply before the router sees them."""
        return self.spec.reply_ns or 0

    @property
    def accuracy_floor(self) -> float:
        return self.spec.accuracy_floor

    @property
    def classes(self) -> Classes | None:
        return self.spec.classes

    def with_slo(self, slo_ns: int) -> "Family":
        """The same family with another SLO."""
        return Family(self.application, replace(self.spec, slo_ns=slo_ns), self.variants)

    def choices(self) -> list[int]:
        """Places of the variants that may serve a request of which nothing is known. Where none
        is sure to keep every recall floor, those that reach the accuracy floor."""
        reached = enumerate(self.accuracy)
        above = [place for place, accuracy in reached if accuracy >= self.accuracy_floor]
        return [place for place in above if place not in self.weak] or above

    def admits(self, request: Request, place: int) -> bool:
        """Whether the request's client leaves it this variant."""
        return request.allowed is None or self.variants[place] in request.allowed

    def above(self, floor: float) -> frozenset[int]:
        """The variants that reach an accuracy; those of unknown accuracy do not."""
        return frozenset(
            variant
            for variant, accuracy in zip(self.variants, self.accuracy, strict=False)
            if accuracy >= floor
        )


def family_of(
    application: int,
    name: str,
    slo_ns: int,
    variants: tuple[int, ...],
    serving: int,
    accuracy: tuple[float, ...] = (),
    input_sizes: tuple[int, ...] = (),
    accuracy_floor: float = 0.0,
    classes: Classes | None = None,
) -> Family:
    """A family without a configuration, its variants named by number."""
    rows = [
        VariantSpec(
            str(variant),
            accuracy=accuracy[place] if accuracy else None,
            input_size=input_sizes[place] if input_sizes else 0,
        )
        for place, variant in enumerate(variants)
    ]
    spec = ApplicationSpec(
        name,
        slo_ns,
        tuple(rows),
        serving=str(serving),
        accuracy_floor=accuracy_floor,
        classes=classes,
    )
    return Family(application, spec, variants)


def alone(
    variants: Iterable[int],
    slo_ns: int = 0,
    accuracy: tuple[float, ...] = (),
    input_sizes: tuple[int, ...] = (),
) -> list[Family]:
    """Applications 0, 1, 2 and so on, each with one variant."""
    return [
        family_of(
            number, f"application {number}", slo_ns, (variant,), variant, accuracy, input_sizes
        )
        for number, variant in enumerate(variants)
    ]
