"""The length of a scheduling window, and the longest that leaves time to run."""

from collections.abc import Iterable

from fermata.router.policies.application import ApplicationSpec

USUAL_NS = 100_000_000


def room_ns(application: ApplicationSpec) -> int:
    """The longest window after which a request that arrived as it began still ends in time."""
    runs_ns = [(each.p99_ns or each.p50_ns or (0,))[0] for each in application.variants]
    return application.slo_ns - (application.reply_ns or 0) - min(runs_ns)


def usual_window_ns(applications: Iterable[ApplicationSpec]) -> int:
    """The window where none is set: half of what the tightest application leaves, where the usual
    one would be too long."""
    least_ns = min((room_ns(each) for each in applications if each.slo_ns), default=USUAL_NS)
    return USUAL_NS if least_ns >= USUAL_NS else max(1, least_ns // 2)
