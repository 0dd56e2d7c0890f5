"""The door of the request table: why a request is refused at once."""

from typing import TYPE_CHECKING

from fermata.deployments.frontend.outcomes import RETRY_AFTER_NS, Refusal
from fermata.deployments.frontend.requests.pending_request import RequestTerms
from fermata.deployments.specs.outcomes import RefusalReason
from fermata.foundation.units import NEVER, ms, seconds
from fermata.router.core.events import DropReason

if TYPE_CHECKING:
    from fermata.deployments.frontend.requests.table import RequestTable


def refusal_at_door(
    table: "RequestTable", now_ns: int, terms: RequestTerms, count: int = 1
) -> Refusal | None:
    """Why a request is not let in, or not so many on terms of which the size is that of all."""
    limits = table.limits
    if not 0 < terms.slo_ns <= limits.slo_ns_max:
        message = (
            f"an SLO of {terms.slo_ns / 1000:g} us cannot be kept: set timeout to more "
            f"than 0 and at most {limits.slo_ns_max // 1000} us"
        )
        return Refusal("INVALID_ARGUMENT", RefusalReason.BAD_INPUT, message)
    if min(terms.slo_ns, terms.left_ns) <= table.reply_ns:
        message = (
            f"late: {min(terms.slo_ns, terms.left_ns) / 1e6:.1f} ms were left on arrival, "
            f"the reply alone takes {table.reply_ns / 1e6:.1f} ms: allow more time"
        )
        return Refusal("DEADLINE_EXCEEDED", DropReason.LATE, message)
    # Later parts of a query that is open belong to it.
    if table.draining and (terms.part is None or terms.part.parent < 0):
        message = "draining: this frontend shuts down; reconnect to reach another"
        return Refusal("UNAVAILABLE", RefusalReason.DRAINING, message, RETRY_AFTER_NS)
    homes = table.homes
    is_doubtful = homes.several or homes.terms[0] < 0
    if is_doubtful and homes.is_lost(now_ns, terms.application, limits.router_wait_ns):
        message = "no-router: no router is linked; try again, or look at the router's log"
        return Refusal("UNAVAILABLE", RefusalReason.NO_ROUTER, message, RETRY_AFTER_NS)
    if objection := table.memory.objection(terms.size_bytes, terms.tenant):
        hint_ns = _retry_after_ns(table, now_ns)
        return Refusal("RESOURCE_EXHAUSTED", RefusalReason.MEMORY, objection, hint_ns)
    if len(table.entries) + count > limits.requests_max:
        message = f"too-many: {limits.requests_max} requests wait; send less or raise the limit"
        hint_ns = _retry_after_ns(table, now_ns)
        return Refusal("RESOURCE_EXHAUSTED", RefusalReason.TOO_MANY, message, hint_ns)
    return None


def _retry_after_ns(table: "RequestTable", now_ns: int) -> int:
    """Time until the first request here expires."""
    wake_at_ns = table.wake_at_ns()
    if wake_at_ns == NEVER:
        return RETRY_AFTER_NS
    return min(max(wake_at_ns - now_ns, ms(1)), seconds(1))
