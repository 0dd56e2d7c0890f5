"""Rights to read the control plane and to change something there. Pure."""

import base64
import binascii
from collections.abc import Sequence
from hmac import compare_digest

READING = ("GET", "HEAD")


class ControlGate:
    """Asks for the operators' token: `Bearer TOKEN`, or, for browsers, `Basic` with the token as
    the password and any name."""

    def __init__(self, tokens: Sequence[str], reading_open: bool) -> None:
        self.reading_open = reading_open
        self.renew(tokens)

    def renew(self, tokens: Sequence[str]) -> None:
        """Those of before are nobody's any more."""
        self._tokens = [token.encode() for token in tokens]

    def refusal(self, method: str, authorization: str) -> tuple[int, str] | None:
        """An HTTP status and why; None where the call may pass."""
        if method in READING and self.reading_open:
            return None
        if not self._tokens:
            return 403, "nobody has a token here: set control.token_file or token_env"
        given = presented(authorization)
        if not given:
            return 401, "no token: send `authorization: Bearer TOKEN`"
        # Every one is compared, so that time tells nothing.
        matches = [compare_digest(token, given) for token in self._tokens]
        return None if any(matches) else (401, "the token is nobody's")


def presented(authorization: str) -> bytes:
    """The token in a header; empty where there is none."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode(errors="replace")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""
