"""Models that a frontend knows, by name and version."""

import random
from collections.abc import Iterable, Mapping
from typing import ClassVar

from fermata.clients.wire.errors import shown
from fermata.deployments.specs.served_model import ServedModel
from fermata.foundation.errors import ServingError
from fermata.router.links.unavailability import Unavailability


class UnknownModelError(ServingError):
    """There is no such model, or no such version of it."""

    grpc_status: ClassVar[str] = "NOT_FOUND"


class UnloadedModelError(UnknownModelError):
    """No backend has loaded the model."""

    grpc_status: ClassVar[str] = "UNAVAILABLE"


class Registry:
    """Models by name and version; one that no backend has loaded is known, but not served."""

    def __init__(
        self, models: Iterable[ServedModel] = (), rng: random.Random | None = None
    ) -> None:
        self.rng = rng or random.Random()
        """Picks the requests that try out a new version."""
        self.models: dict[str, dict[str, ServedModel]] = {}
        """Models by name, then by version, oldest first."""
        for model in models:
            known = self.models.setdefault(model.name, {})
            known.update(dict.fromkeys(model.own_versions, model))
        self.unavailable: dict[str, Unavailability] = {}
        """Reasons why applications are unavailable, by the router's name."""
        self.newest: dict[str, tuple[ServedModel, str]] = {}
        """Model and version for requests that name no version."""
        self.trials: dict[str, tuple[float, tuple[ServedModel, str]]] = {}
        """Share of those requests that try out a newer version, with that version."""
        self.changes = 0
        """Times that what is served has changed: whatever was found before may be another now."""
        self.set_unavailable({})

    @classmethod
    def of(cls, models: Iterable[ServedModel]) -> "Registry":
        return cls(models)

    def every(self) -> list[tuple[ServedModel, str]]:
        """Each version of each model."""
        return [
            (model, version)
            for versions in self.models.values()
            for version, model in versions.items()
        ]

    def set_unavailable(self, unavailable: Mapping[str, Unavailability]) -> None:
        """Set the applications that are not served, by the router's name."""
        self.unavailable = dict(unavailable)
        self.changes += 1
        self.newest.clear()
        self.trials.clear()
        for model, version in self.every():
            if self._unavailability(model, version) is not None:
                continue
            if model.share < 1.0 and model.name in self.newest:
                self.trials[model.name] = (model.share, (model, version))
            else:
                self.newest[model.name] = (model, version)
                self.trials.pop(model.name, None)

    def _unavailability(self, model: ServedModel, version: str) -> Unavailability | None:
        """Why a version, or a shape bucket of it, is not served; None where all of it is."""
        known = self.unavailable
        found = (known.get(each) for each in model.applications(version)) if known else ()
        return next((each for each in found if each is not None), None)

    def find(self, name: str, version: str = "") -> tuple[ServedModel, str]:
        """A loaded model and its version, which a client may also write as `name@version`."""
        if not version:
            if name in self.trials:
                share, tried = self.trials[name]
                if self.rng.random() < share:
                    return tried
            found = self.newest.get(name)
            if found is not None:
                return found
        model, version = self.known(name, version)
        reason = self._unavailability(model, version)
        if reason is not None:
            raise UnloadedModelError(
                f"model {model.name!r} version {version} is not served: {reason}; "
                "load it, or use another"
            )
        return model, version

    def stem(self, name: str) -> str:
        """The model's name in `name` or `name@version`, whether it exists or not."""
        return name if name in self.models else name.rpartition("@")[0] or name

    def known(self, name: str, version: str = "") -> tuple[ServedModel, str]:
        """A model and its version, loaded or not; the highest version if none is named."""
        versions = self.models.get(name)
        if versions is None:
            # Rights to a model are checked by the stem alone, so errors must name no other model.
            stem = self.stem(name)
            named = name[len(stem) + 1 :]
            versions = self.models.get(stem)
            if versions is not None and version not in ("", named):
                raise UnknownModelError(
                    f"{shown(name)} and version {shown(version)}: give one of the two"
                )
            version = named
        if versions is None:
            known = ", ".join(sorted(self.models)[:10]) or "none"
            raise UnknownModelError(f"model {shown(name)} is not served here: use one of {known}")
        version = version or next(reversed(versions))
        if version not in versions:
            known = ", ".join(versions)
            stem = next(iter(versions.values())).name
            raise UnknownModelError(
                f"model {stem!r} has no version {shown(version)}: use one of {known}"
            )
        return versions[version], version
