"""A base of policies that route each request to one of their backends when it arrives."""

from collections.abc import Sequence

from fermata.router.core.source import NO_LANES, Source, SourceContext
from fermata.router.policies.family import Family
from fermata.router.policies.unassigned import Unassigned


class RoutedOnArrival(Source):
    """Serves each application by one variant; requests that find no backend wait."""

    owns_backends = True

    def __init__(self, families: Sequence[Family]) -> None:
        self.variants = {family.application: family.serving for family in families}
        self.slo_ns = dict.fromkeys(self.variants, 0)
        self.stranded = Unassigned(self)

    def attach(self, desk: SourceContext) -> None:
        super().attach(desk)
        self.tables = {
            application: desk.costs.of(variant).plan_ns
            for application, variant in self.variants.items()
        }

    def on_time(self, now_ns: int) -> Sequence[int]:
        self.stranded.drop_hopeless(now_ns)
        return NO_LANES

    def alone_ns(self, application: int) -> int:
        """Run time of a request alone."""
        return self.desk.lead_ns(1, application) + self.tables[application][1]
