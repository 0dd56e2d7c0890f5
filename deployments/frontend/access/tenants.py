"""Tenants: who somebody is by a bearer token, what they may use, and how often."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest
from typing import ClassVar, Protocol

from fermata.clients.wire.errors import shown
from fermata.deployments.frontend.access.rate_limit import RateLimit
from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.specs.frontend import TenantSpec
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.deployments.specs.registry import Registry
from fermata.foundation.errors import ServingError

AUTHORIZATION = "authorization"
SCHEME = "bearer "
TOKEN_LENGTH_MAX = 4096
"""Nobody's is longer; the rest need not be looked at."""


class UnauthenticatedError(ServingError):
    """No token, or nobody's."""

    grpc_status: ClassVar[str] = "UNAUTHENTICATED"


class ForbiddenError(ServingError):
    """The tenant may not do this."""

    grpc_status: ClassVar[str] = "PERMISSION_DENIED"


class Tenant:
    """One who is known, and what has come of them lately."""

    __slots__ = ("applications", "limit", "name", "operator")

    def __init__(
        self,
        name: str,
        applications: frozenset[str] = frozenset(),
        limit: RateLimit | None = None,
        operator: bool = False,
    ) -> None:
        self.name = name
        self.applications = applications
        self.limit = limit
        self.operator = operator

    def may_use(self, application: str) -> bool:
        return not self.applications or application in self.applications

    def check(self, registry: Registry, model: str) -> None:
        """Raise ForbiddenError unless it may use this model, by whatever name it calls it.

        Asked before anybody looks the model up: names of others' models are not told.
        """
        if self.applications and registry.stem(model) not in self.applications:
            raise ForbiddenError(
                f"tenant {self.name!r} may not use model {shown(model)}: ask the operator for it"
            )

    def check_operator(self) -> None:
        if not self.operator:
            raise ForbiddenError(f"tenant {self.name!r} is no operator, and places no models")

    def admit(self, now_ns: int) -> Refusal | None:
        """None where one more request of it may pass."""
        wait_ns = 0 if self.limit is None else self.limit.take(now_ns)
        if not wait_ns:
            return None
        message = f"tenant {self.name!r} has had its rate: come again in {wait_ns / 1e6:.0f} ms"
        return Refusal("RESOURCE_EXHAUSTED", RefusalReason.RATE, message, wait_ns)


ANYBODY = Tenant("", operator=True)
"""Where no tenants are configured."""


def _tenant(spec: TenantSpec) -> Tenant:
    limit = None if spec.rate_rps is None else RateLimit(spec.rate_rps, spec.burst)
    return Tenant(spec.name, spec.applications, limit, spec.operator)


class TokenSource(Protocol):
    """Follows the tokens of tenants, which may change while a process runs."""

    async def keep(self, take: Callable[[Mapping[str, Sequence[str]]], None]) -> None:
        """Pass the tokens of each tenant to `take` whenever they may have changed, for ever."""


class Tenants:
    """Everybody who is known. It keeps no token: digests under a key of this process alone."""

    def __init__(self, specs: Sequence[TenantSpec] = ()) -> None:
        self._key = secrets.token_bytes(32)
        self._tenants = {spec.name: _tenant(spec) for spec in specs}
        self._known: list[tuple[bytes, Tenant]] = []
        self.frontends = 1
        """That share each tenant's rate, this one among them."""
        self.shares: Mapping[str, float] = {}
        """Of this one, by tenant; where it is not known yet, all have the same."""
        self.renew({spec.name: spec.tokens for spec in specs})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tenants)

    def share_with(self, frontends: int) -> None:
        """So many frontends are there."""
        self.frontends = max(1, frontends)
        self._share_out()

    def set_shares(self, shares: Mapping[str, float]) -> None:
        """How much of tenants' rates is this frontend's to give, as the router has worked it
        out."""
        self.shares = shares
        self._share_out()

    def _share_out(self) -> None:
        if self.frontends == 1:
            self.shares = {}
        for name, tenant in self._tenants.items():
            if tenant.limit is not None:
                tenant.limit.set_share(self.shares.get(name) or 1 / self.frontends)

    def renew(self, tokens: Mapping[str, Sequence[str]]) -> None:
        """These tenants have these tokens: those of before are nobody's any more."""
        kept = [each for each in self._known if each[1].name not in tokens]
        self._known = kept + [
            (self._digest(token), self._tenants[name])
            for name, theirs in tokens.items()
            for token in theirs
        ]

    def __bool__(self) -> bool:
        """Whether anybody has to say who they are."""
        return bool(self._tenants)

    def _digest(self, token: str) -> bytes:
        return blake2b(token.encode(errors="replace"), digest_size=32, key=self._key).digest()

    def find(self, authorization: str) -> Tenant:
        """Whose `Bearer TOKEN` this is; raises UnauthenticatedError.

        It takes the same time whoever it is, and if it is nobody.
        """
        if not self._tenants:
            return ANYBODY
        if not authorization[: len(SCHEME)].lower() == SCHEME:
            raise UnauthenticatedError("no token: send `authorization: Bearer TOKEN`")
        digest = self._digest(authorization[len(SCHEME) :][:TOKEN_LENGTH_MAX].strip())
        found: Tenant | None = None
        for known, tenant in self._known:
            if compare_digest(known, digest):
                found = tenant
        if found is None:
            raise UnauthenticatedError("the token is nobody's: ask the operator for one")
        return found
