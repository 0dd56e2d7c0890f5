"""Access rights, as configured: names of files and variables, never what they hold.

A configuration travels through Ray and shows in its dashboard, so a secret is read by the process
that needs it, on its own machine. Environment variables are read in this file only.
"""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from fermata.deployments.config.base import Positive, Section
from fermata.foundation.errors import ConfigError

TOKEN_LENGTH_MIN = 16


class TokenConfig(Section):
    """Where a bearer token is found; one of both."""

    token_file: str = ""
    """File with the token; several lines are several tokens, so that one can take the place of
    another."""
    token_env: str = ""
    """Environment variable with the token, in the processes that check it."""

    @property
    def is_given(self) -> bool:
        return bool(self.token_file or self.token_env)

    @model_validator(mode="after")
    def _one_place(self) -> "TokenConfig":
        if self.token_file and self.token_env:
            raise ValueError("give one of token_file and token_env")
        return self

    def tokens(self) -> tuple[str, ...]:
        """The tokens of now; a ConfigError names the place, and nothing of the contents."""
        in_file = f"token_file={self.token_file}"
        where = in_file if self.token_file else f"token_env={self.token_env}"
        if self.token_file:
            try:
                text = Path(self.token_file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{where} cannot be read ({type(error).__name__})") from None
        else:
            text = os.environ.get(self.token_env, "")
        found = tuple(line.strip() for line in text.splitlines() if line.strip())
        if not found:
            raise ConfigError(f"{where} holds no token; write one into it")
        for token in found:
            if len(token) < TOKEN_LENGTH_MIN or not token.isascii() or not token.isprintable():
                raise ConfigError(
                    f"{where} holds a token below {TOKEN_LENGTH_MIN} printable ASCII characters; "
                    "make one with `openssl rand -hex 32`"
                )
        return found


class CertificateConfig(Section):
    """TLS; files in PEM, on the machines of the processes that need them."""

    certificate_file: str
    """Certificate, with those between it and its authority."""
    key_file: str
    """Its key."""


class ClientTlsConfig(CertificateConfig):
    """TLS towards clients, for gRPC and HTTP."""

    client_ca_file: str = ""
    """Authority of clients' certificates; given, a client without one does not get a connection."""


class LinkTlsConfig(CertificateConfig):
    """TLS between the processes; both ends show a certificate."""

    ca_file: str
    """Authority of those certificates."""
    name: str = "fermata"
    """DNS name that stands in each of them."""


class TenantConfig(TokenConfig):
    """Somebody who may send requests, known by a token."""

    name: str
    """For refusals and the log; not secret."""
    applications: list[str] = []
    """Applications that it may use; empty: all."""
    rate_rps: Positive | None = None
    """Requests a second that all frontends together take from it; absent: any."""
    burst: Annotated[int, Field(ge=1)] = 32
    """Requests of those that may come at once."""
    operator: bool = False
    """May load and unload models, where `repository` is open."""

    @model_validator(mode="after")
    def _has_token(self) -> "TenantConfig":
        if not self.is_given:
            raise ValueError("a tenant needs token_file or token_env")
        return self
