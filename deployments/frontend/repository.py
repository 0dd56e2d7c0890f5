"""Loads and unloads models for clients: asks the router, and answers when it is done."""

import asyncio
from collections.abc import Callable
from typing import ClassVar

from fermata.deployments.specs.registry import Registry
from fermata.foundation.errors import ServingError
from fermata.router.links.messages import Place, Unavailable
from fermata.router.links.unavailability import LOADING, UnavailableCause

WAIT_S = 300.0
"""A large model on a slow disk takes minutes; a client with less patience sets a deadline."""


class FixedRepositoryError(ServingError):
    """The configuration does not let clients load models."""

    grpc_status: ClassVar[str] = "PERMISSION_DENIED"


class LoadFailedError(ServingError):
    """No backend could load it."""

    grpc_status: ClassVar[str] = "FAILED_PRECONDITION"


class Repository:
    """Keeps the registry's list of unavailable models as the router reports it."""

    def __init__(self, registry: Registry, is_open: bool, ask: Callable[[Place], None]) -> None:
        self.registry = registry
        self.is_open = is_open
        self.ask = ask
        self.changed = asyncio.Event()

    def on_unavailable(self, message: Unavailable) -> None:
        self.registry.set_unavailable(message.applications)
        self.changed.set()
        self.changed = asyncio.Event()

    async def place(self, name: str, load: bool) -> None:
        """Load or unload `name@version`, or every version of `name`; returns when it is done.

        Raises UnknownModelError, FixedRepositoryError, LoadFailedError or TimeoutError.
        """
        applications = self._applications(name)
        if not self.is_open:
            raise FixedRepositoryError(
                "models are placed by the configuration: set repository: open there to let "
                "clients load and unload them"
            )
        known = self.registry.unavailable
        if load:
            # An earlier failure is not the answer to this call.
            tried = {each: LOADING for each in applications if each in known}
            self.registry.set_unavailable({**known, **tried})
        for application in applications:
            self.ask(Place(application, load))
        async with asyncio.timeout(WAIT_S):
            while not self._is_so(applications, load):
                await self.changed.wait()

    def _applications(self, name: str) -> list[str]:
        """The router's names of the applications."""
        model, version = self.registry.known(name)
        if name != model.name:
            return list(model.applications(version))
        versions = self.registry.models[name]
        return [
            application
            for version, model in versions.items()
            for application in model.applications(version)
        ]

    def _is_so(self, applications: list[str], load: bool) -> bool:
        unavailable = self.registry.unavailable
        if not load:
            return all(each in unavailable for each in applications)
        left = [each for each in applications if each in unavailable]
        for each in left:
            if unavailable[each].cause is UnavailableCause.LOAD_FAILED:
                raise LoadFailedError(f"{each}: {unavailable[each]}")
        return not left
