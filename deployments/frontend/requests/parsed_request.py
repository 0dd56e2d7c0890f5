"""A request as parsed from its message."""

from dataclasses import dataclass, replace

from fermata.deployments.frontend.inputs.request_input import RequestInput
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.specs.served_model import ServedModel
from fermata.router.links.messages import ClientNetworkReport, Truth


@dataclass(slots=True)
class ParsedRequest:
    """A well-formed request. Hot: one for each."""

    version: str
    request_id: str
    terms: RequestTerms
    input: RequestInput
    report: ClientNetworkReport | None = None
    """The client's report on itself and its network, if it sent one."""
    acknowledge: bool = False
    """The client measures its network: acknowledge its frame as soon as that has arrived."""
    traceparent: str = ""
    """The caller's trace, if it named one."""
    sequence_id: str = ""
    """The sequence that it is a step of, as its client names it; empty: none."""
    classes: tuple[tuple[str, int], ...] = ()
    """Wanted outputs, each with the number of best classes to name; 0 for the tensor itself."""
    truth: Truth | None = None
    """The true class of an earlier request, if the client tells it."""

    @property
    def is_split(self) -> bool:
        """Whether it has more rows than a batch takes, or rows that are still to be decoded."""
        return self.input.encoded or self.input.rows > self.input.rows_max

    def split(self) -> "list[ParsedRequest]":
        """The request in parts, each with its rows and its memory."""
        return [
            replace(
                self,
                input=part,
                terms=replace(self.terms, size_bytes=part.memory_bytes(), rows=part.rows),
                report=None,
                truth=None,
            )
            for part in self.input.split(self.input.rows_max)
        ]

    @property
    def model(self) -> ServedModel:
        return self.input.model
