"""Hint for a retry of a request that was dropped."""

from fermata.router.assembly import Assembly
from fermata.router.core.admission import RULES
from fermata.router.core.events import DropReason


def retry_after_ns(built: Assembly, reason: str, application: int) -> int:
    """Time until admission reviews its share, or a batch has passed; 0 if no retry helps."""
    if reason in (DropReason.SUPERSEDED, DropReason.FAILED):
        return 0
    if reason == DropReason.SHED:
        return RULES.window_ns
    source = built.engine.sources[application]
    serving = built.engine.costs.of(built.families[application].serving)
    return int(source.desk.signals.wait_ns) + serving.p50_ns[serving.size_max]
