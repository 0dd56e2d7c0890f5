"""Reads each metric's samples from the status of a deployment."""

from collections.abc import Callable, Iterable, Iterator

from fermata.deployments.metrics.exposition import SECOND, Counts, Sample
from fermata.deployments.specs.outcomes import GOOD, LATE
from fermata.deployments.specs.status import DeploymentStatus
from fermata.router.telemetry.histogram import HistogramSnapshot
from fermata.router.telemetry.snapshot import VariantSnapshot

Reader = Callable[[DeploymentStatus], Iterable[Sample] | Iterable[Counts]]


def each_application(key: str) -> Reader:
    """One counter of every application."""

    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for name, told in status.router.applications.items():
            yield {"application": name}, getattr(told, key)

    return read


def application_histogram(key: str) -> Reader:
    """One histogram of every application."""

    def read(status: DeploymentStatus) -> Iterator[Counts]:
        for name, told in status.router.applications.items():
            yield {"application": name}, getattr(told, key), SECOND

    return read


def bad(status: DeploymentStatus) -> Iterator[Sample]:
    for name, told in status.router.applications.items():
        for reason, count in {LATE: told.late, **told.dropped}.items():
            yield {"application": name, "reason": reason}, count


def answered(status: DeploymentStatus) -> Iterator[Sample]:
    for name, told in status.router.applications.items():
        # From the start, so that rates of the first ones are seen.
        for outcome, count in {GOOD: 0, LATE: 0, **told.answered}.items():
            yield {"application": name, "outcome": outcome}, count


def tenants(status: DeploymentStatus) -> Iterator[Sample]:
    for name, told in status.router.tenants.items():
        for outcome, count in {GOOD: 0, LATE: 0, **told}.items():
            yield {"tenant": name, "outcome": outcome}, count


def slo(status: DeploymentStatus) -> Iterator[Sample]:
    for name, told in status.router.applications.items():
        yield {"application": name}, told.slo_ns / SECOND


def absent(status: DeploymentStatus) -> Iterator[Sample]:
    for name in status.router.applications:
        yield {"application": name}, int(name in status.router.absent)


def bad_rate(status: DeploymentStatus) -> Iterator[Sample]:
    for name, rate in status.bad_rates.items():
        yield {"application": name}, rate


def streams(key: str) -> Reader:
    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for name, told in status.router.applications.items():
            yield {"application": name}, getattr(told.streams, key)

    return read


def accuracy(status: DeploymentStatus) -> Iterator[Sample]:
    for name, told in status.router.applications.items():
        if told.rated:
            yield {"application": name}, told.expected_right / told.rated


def looks(key: str) -> Reader:
    """One counter of every application whose requests are looked at."""

    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for name, told in status.router.applications.items():
            if told.looks is not None:
                yield {"application": name}, getattr(told.looks, key)

    return read


def class_shares(status: DeploymentStatus) -> Iterator[Sample]:
    for name, told in status.router.applications.items():
        if told.looks is not None:
            for number, share in told.looks.frequencies.items():
                yield {"application": name, "class": str(number)}, share


def policy_figures(status: DeploymentStatus) -> Iterator[Sample]:
    for name, told in status.router.policies.items():
        for figure, value in told.figures.items():
            yield {"application": name, "figure": figure}, value


def promised(key: str) -> Reader:
    """One figure of every promise."""

    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for name, told in status.promises.items():
            yield {"application": name}, getattr(told.promised, key)

    return read


def observed(key: str) -> Reader:
    """One figure of what was observed beside every promise; left out while there is none."""

    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for name, told in status.promises.items():
            seen = getattr(told, key)
            if seen is not None:
                yield {"application": name}, seen

    return read


def replanning(key: str) -> Callable[[DeploymentStatus], Iterator[Sample]]:
    """Counter of decisions on the mapping of clients; 0 without such a policy."""

    def found(status: DeploymentStatus) -> Iterator[Sample]:
        yield {}, 0 if status.replanning is None else getattr(status.replanning, key)

    return found


def application_busy(status: DeploymentStatus) -> Iterator[Sample]:
    for name, busy_ns in status.router.busy_ns.items():
        yield {"application": name}, busy_ns / SECOND


def _of_variant(told: VariantSnapshot) -> dict[str, str]:
    return {"application": told.application, "variant": told.name}


def batch_sizes(status: DeploymentStatus) -> Iterator[Counts]:
    bounds = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    for told in status.router.variants:
        counts = [0] * (len(bounds) + 1)
        for size, batches in told.batch_sizes.items():
            counts[sum(size > bound for bound in bounds)] += batches
        yield _of_variant(told), HistogramSnapshot(bounds, tuple(counts), told.requests), 1.0


def variant_requests(status: DeploymentStatus) -> Iterator[Sample]:
    for told in status.router.variants:
        yield _of_variant(told), told.requests


def margin(status: DeploymentStatus) -> Iterator[Sample]:
    for told in status.router.variants:
        yield _of_variant(told), told.margin_factor


def sub_cluster(key: str, unit: float = 1.0) -> Reader:
    """One figure of every sub-cluster."""

    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for number, told in enumerate(status.router.ranks):
            yield {"subcluster": str(number)}, getattr(told, key) / unit

    return read


def spares(status: DeploymentStatus) -> Iterable[Sample]:
    return [({}, len(status.router.spares))]


def idle(status: DeploymentStatus) -> Iterator[Sample]:
    for number, share in enumerate(status.idle_fractions):
        yield {"subcluster": str(number)}, share


def single(key: str, unit: float = 1.0) -> Reader:
    """A figure of the whole router."""

    def read(status: DeploymentStatus) -> Iterable[Sample]:
        return [({}, getattr(status.router, key) / unit)]

    return read


def single_histogram(key: str) -> Reader:
    def read(status: DeploymentStatus) -> Iterable[Counts]:
        return [({}, getattr(status.router, key), SECOND)]

    return read


def frontend(key: str, unit: float = 1.0) -> Reader:
    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for number, told in status.router.processes.frontends.items():
            yield {"frontend": str(number)}, getattr(told, key) / unit

    return read


def backend(key: str) -> Reader:
    """One figure of every backend; a negative one is unknown, and left out."""

    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for number, told in status.router.processes.backends.items():
            if getattr(told, key) >= 0:
                yield {"backend": str(number)}, getattr(told, key)

    return read


def process_memory(status: DeploymentStatus) -> Iterator[Sample]:
    processes = status.router.processes
    for number, told in processes.frontends.items():
        yield {"role": "frontend", "number": str(number)}, told.memory_bytes
    for number, own in processes.backends.items():
        yield {"role": "backend", "number": str(number)}, own.memory_bytes


def backend_factor(status: DeploymentStatus) -> Iterator[Sample]:
    for number, told in status.router.backends.items():
        yield {"backend": str(number)}, told.factor


def backend_running(status: DeploymentStatus) -> Iterator[Sample]:
    for number, told in status.router.backends.items():
        yield {"backend": str(number)}, int(told.running)


def loads(place: int, unit: float) -> Reader:
    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for variant, counts in status.router.loads.items():
            yield {"variant": variant}, counts[place] / unit

    return read


def non_finite(status: DeploymentStatus) -> Iterator[Sample]:
    for variant, count in status.router.non_finite.items():
        yield {"variant": variant}, count


def advice(key: str) -> Reader:
    def read(status: DeploymentStatus) -> Iterator[Sample]:
        advised = () if status.scaling is None else status.scaling.advice
        for number, told in enumerate(advised):
            yield {"subcluster": str(number)}, getattr(told, key)

    return read


def moved(status: DeploymentStatus) -> Iterator[Sample]:
    if status.scaling is not None:
        yield {}, status.scaling.moved


def count(key: str) -> Reader:
    def read(status: DeploymentStatus) -> Iterable[Sample]:
        return [({}, len(getattr(status.router, key)))]

    return read
