"""Tenants, known by bearer tokens: their models and their rate limits."""

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
from fermata.foundation.denials import DeniedLogins
from fermata.foundation.errors import ServingError

AUTHORIZATION = "authorization"
SCHEME = "bearer "
TOKEN_LENGTH_MAX = 4096
"""No token is longer, so the rest is not hashed."""


class UnauthenticatedError(ServingError):
    """The call has no token, or an unknown one."""

    grpc_status: ClassVar[str] = "UNAUTHENTICATED"


class ForbiddenError(ServingError):
    """The tenant has no right to this."""

    grpc_status: ClassVar[str] = "PERMISSION_DENIED"


class Tenant:
    """One tenant: its rights and the state of its rate limit."""

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
        """Raise ForbiddenError unless it may use this model, given with or without a version.

        Called before the model is looked up, so that other tenants' models stay hidden.
        """
        if self.applications and registry.stem(model) not in self.applications:
            raise ForbiddenError(
                f"tenant {self.name!r} may not use model {shown(model)}: ask the operator for it"
            )

    def check_operator(self) -> None:
        if not self.operator:
            raise ForbiddenError(
                f"tenant {self.name!r} is no operator, and may not load or unload models"
            )

    def admit(self, now_ns: int) -> Refusal | None:
        """Admit one request: None, or a refusal."""
        wait_ns = 0 if self.limit is None else self.limit.take(now_ns)
        if not wait_ns:
            return None
        wait_ms = wait_ns / 1e6
        message = f"tenant {self.name!r} is above its rate: try again in {wait_ms:.0f} ms"
        return Refusal("RESOURCE_EXHAUSTED", RefusalReason.RATE, message, wait_ns)


ANYBODY = Tenant("", operator=True)
"""The tenant of every call if none are configured."""


def _tenant(spec: TenantSpec) -> Tenant:
    limit = None if spec.rate_rps is None else RateLimit(spec.rate_rps, spec.burst)
    return Tenant(spec.name, spec.applications, limit, spec.operator)


class TokenSource(Protocol):
    """Follows the tokens of tenants, which may change while a process runs."""

    async def keep(self, take: Callable[[Mapping[str, Sequence[str]]], None]) -> None:
        """Pass the tokens of each tenant to `take` whenever they may have changed, for ever."""


class Tenants:
    """All configured tenants. Tokens are kept as digests, under a key of this process alone."""

    def __init__(self, specs: Sequence[TenantSpec] = ()) -> None:
        self._key = secrets.token_bytes(32)
        self._tenants = {spec.name: _tenant(spec) for spec in specs}
        self._known: list[tuple[bytes, Tenant]] = []
        self.denied = DeniedLogins()
        self.frontends = 1
        """Frontends that share each tenant's rate, this one among them."""
        self.shares: Mapping[str, float] = {}
        """This frontend's share of each tenant's rate; until it is known, all have the same."""
        self.renew({spec.name: spec.tokens for spec in specs})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tenants)

    def set_frontends(self, frontends: int) -> None:
        """Share rates with this many frontends, this one included."""
        self.frontends = max(1, frontends)
        self._update_limits()

    def set_shares(self, shares: Mapping[str, float]) -> None:
        """Set this frontend's share of each tenant's rate, as the router computes it."""
        self.shares = shares
        self._update_limits()

    def _update_limits(self) -> None:
        if self.frontends == 1:
            self.shares = {}
        for name, tenant in self._tenants.items():
            if tenant.limit is not None:
                tenant.limit.set_share(self.shares.get(name) or 1 / self.frontends)

    def renew(self, tokens: Mapping[str, Sequence[str]]) -> None:
        """Replace the tokens of these tenants; their old ones are void."""
        kept = [each for each in self._known if each[1].name not in tokens]
        self._known = kept + [
            (self._digest(token), self._tenants[name])
            for name, own in tokens.items()
            for token in own
        ]

    def __bool__(self) -> bool:
        """Whether calls need a token."""
        return bool(self._tenants)

    def _digest(self, token: str) -> bytes:
        return blake2b(token.encode(errors="replace"), digest_size=32, key=self._key).digest()

    def find(self, authorization: str) -> Tenant:
        """The tenant of a `Bearer TOKEN`; raises UnauthenticatedError.

        It takes the same time for every token, known or not.
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
            raise UnauthenticatedError("the token is unknown: ask the operator for one")
        return found
