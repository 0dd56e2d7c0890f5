"""Parts of one result that come in one message, each as a request by itself."""

import msgspec

from fermata.router.links.messages import Payload, Submit


def each_of(submit: Submit) -> list[Submit]:
    """All requests of a message."""
    alone = msgspec.structs.replace(submit, beside=())
    return [alone, *[_beside(alone, other) for other in submit.beside]]


def _beside(first: Submit, other: Payload | int) -> Submit:
    """Not by `replace`, which takes several times as long."""
    rid, payload = (other, None) if isinstance(other, int) else (other.rid, other)
    return Submit(
        rid,
        first.application,
        first.slo_ns,
        first.hard_limit_ns,
        first.client,
        first.priority,
        first.accuracy_floor,
        first.pinned,
        first.tenant,
        first.rows,
        payload,
        first.sequence,
        first.part,
        first.retried,
    )
