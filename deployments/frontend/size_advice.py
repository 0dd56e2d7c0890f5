"""The router's advice on input sizes, kept for the next answers to each client."""

from fermata.router.links.messages import InputSizeAdvice

ClientKey = tuple[str, int]
"""Application and client."""


class SizeAdvice:
    """The last advice to each client that reports. Pure."""

    def __init__(self, clients_max: int) -> None:
        self.clients_max = clients_max
        self.known: dict[ClientKey, InputSizeAdvice] = {}
        """In the order of the clients' last requests."""

    def __len__(self) -> int:
        return len(self.known)

    def keep(self, advice: InputSizeAdvice) -> None:
        """Keep advice; the client silent for longest is forgotten first."""
        key = advice.application, advice.client
        if len(self.known) >= self.clients_max and key not in self.known:
            self.known.pop(next(iter(self.known)))
        self.known[key] = advice

    def of(self, key: ClientKey) -> InputSizeAdvice | None:
        """Advice for a client that asks something now, if there is any."""
        advice = self.known.pop(key, None)
        if advice is not None:
            self.known[key] = advice
        return advice


def headers_of(advice: InputSizeAdvice | None, reports: bool) -> dict[str, str]:
    """Advice as headers, for a refusal that has no message to hold it; none for a client that does
    not report its network."""
    if advice is None or not reports:
        return {}
    return {
        "fermata-input-size": str(advice.input_size),
        "fermata-network-us": str(advice.network_ns // 1000),
        "fermata-served": str(advice.served).lower(),
    }
