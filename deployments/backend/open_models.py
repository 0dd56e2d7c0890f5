"""Models that several variants of a backend run: shape buckets share one copy of the weights."""

from collections.abc import Callable

from fermata.deployments.models.model import Model
from fermata.deployments.specs.backend import ModelSpec


class OpenModels:
    """Open models by the variant in the file, each with the buckets that run it."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self.users: dict[str, set[str]] = {}

    def take(self, spec: ModelSpec, open_model: Callable[[], Model]) -> Model:
        """The model of a variant, opened unless another bucket of it runs here."""
        if not spec.stem:
            return open_model()
        found = self.models.get(spec.stem) or open_model()
        # One that has to be closed is closed with its runner: each bucket has its own then.
        if not hasattr(found, "close"):
            self.models[spec.stem] = found
            self.users.setdefault(spec.stem, set()).add(spec.name)
        return found

    def is_shared(self, spec: ModelSpec) -> bool:
        """Whether another bucket runs the model too."""
        return len(self.users.get(spec.stem, ())) > 1

    def is_first(self, spec: ModelSpec) -> bool:
        """Whether a variant is the only bucket so far that runs a shared model."""
        return self.users.get(spec.stem) == {spec.name}

    def release(self, spec: ModelSpec) -> bool:
        """Forget a variant that is closed; whether it was the last that ran a shared model."""
        users = self.users.get(spec.stem, set())
        users.discard(spec.name)
        if users or spec.stem not in self.models:
            return False
        del self.models[spec.stem], self.users[spec.stem]
        return True
