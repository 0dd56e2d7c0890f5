"""Hint for a retry of a request that was dropped."""

from fermata.router.assembly import Assembly
from fermata.router.core.events import DropReason
from fermata.router.core.fairness.admission import RULES
from fermata.router.health.recovery import Recovery


def retry_after_ns(
    built: Assembly, recovery: Recovery, now_ns: int, reason: str, application: int
) -> int:
    """Time until a backend should be back, admission reviews its share, or a batch has passed; 0 if
    no retry helps."""
    if reason in (DropReason.SUPERSEDED, DropReason.FAILED, DropReason.HUNG):
        return 0
    if reason == DropReason.NO_BACKEND:
        return recovery.retry_after_ns(now_ns)
    if reason == DropReason.SHED:
        return RULES.window_ns
    source = built.engine.sources[application]
    serving = built.engine.costs.of(built.families[application].serving)
    return int(source.desk.signals.wait_ns) + serving.p50_ns[serving.size_max]
