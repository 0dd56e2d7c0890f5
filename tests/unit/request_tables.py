"""Request tables of tests: how they are made, asked and read."""

from fermata.deployments.frontend.outcomes import Refusal
from fermata.deployments.frontend.requests.pending_request import (
    Release,
    RequestTerms,
    SendAnswer,
    ToRouter,
)
from fermata.deployments.frontend.requests.table import RequestTable
from fermata.deployments.specs.frontend import TableLimits
from fermata.foundation.units import NEVER, ms
from fermata.router.links.messages import (
    Cancel,
    Payload,
    Result,
    Submit,
)

LIMITS = TableLimits(payload_bytes_max=1000, grace_ns=ms(20), reply_ns=ms(1))


def make(router: bool = True, limits: TableLimits = LIMITS) -> RequestTable:
    table = RequestTable(7, limits)
    if router:
        table.on_router_up(0, 1)
    return table


def arrival(slo_ns: int = ms(50), left_ns: int = NEVER, size: int = 100) -> RequestTerms:
    return RequestTerms("resnet", slo_ns, slo_ns, size, left_ns=left_ns)


def admit(table: RequestTable, now_ns: int, given: RequestTerms) -> int:
    rid = table.admit(now_ns, given)
    assert isinstance(rid, int)
    return rid


def payload(rid: int) -> Payload:
    return Payload(rid, "UINT8", (4,), b"abcd")


def result(rid: int, error: str = "") -> Result:
    return Result(rid, "r50", 8, 0, ms(5), error=error)


def answers(table: RequestTable) -> list[tuple[int, str]]:
    """(rid, status) of what was answered since the last look."""
    found = [each for each in table.take_effects() if isinstance(each, SendAnswer)]
    return [
        (each.rid, each.outcome.status if isinstance(each.outcome, Refusal) else "OK")
        for each in found
    ]


def to_router(table: RequestTable) -> list[Submit | Cancel]:
    return [each.message for each in table.take_effects() if isinstance(each, ToRouter)]


def shared(rid: int) -> Payload:
    return Payload(rid, "UINT8", (4,), b"", "segment", 64, 4)


def released(table: RequestTable) -> list[int]:
    return [each.payload.rid for each in table.take_effects() if isinstance(each, Release)]
