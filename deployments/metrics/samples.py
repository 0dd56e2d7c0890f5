"""Where each metric's samples stand in the router's snapshot."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fermata.deployments.frontend.requests.outcome_counts import GOOD, LATE
from fermata.deployments.metrics.exposition import SECOND, Counts, Sample, Snapshot


def each_application(key: str) -> Any:
    """One counter of every application."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for name, told in snapshot["applications"].items():
            yield {"application": name}, told[key]

    return read


def application_histogram(key: str) -> Any:
    """One histogram of every application."""

    def read(snapshot: Snapshot) -> Iterator[Counts]:
        for name, told in snapshot["applications"].items():
            yield {"application": name}, told[key], SECOND

    return read


def bad(snapshot: Snapshot) -> Iterator[Sample]:
    for name, told in snapshot["applications"].items():
        for reason, count in {LATE: told["late"], **told["dropped"]}.items():
            yield {"application": name, "reason": reason}, count


def answered(snapshot: Snapshot) -> Iterator[Sample]:
    for name, told in snapshot["applications"].items():
        # From the start, so that rates of the first ones are seen.
        for outcome, count in {GOOD: 0, LATE: 0, **told["answered"]}.items():
            yield {"application": name, "outcome": outcome}, count


def tenants(snapshot: Snapshot) -> Iterator[Sample]:
    for name, told in snapshot["tenants"].items():
        for outcome, count in {GOOD: 0, LATE: 0, **told}.items():
            yield {"tenant": name, "outcome": outcome}, count


def slo(snapshot: Snapshot) -> Iterator[Sample]:
    for name, told in snapshot["applications"].items():
        yield {"application": name}, told["slo_ns"] / SECOND


def absent(snapshot: Snapshot) -> Iterator[Sample]:
    for name in snapshot["applications"]:
        yield {"application": name}, int(name in snapshot["absent"])


def bad_rate(snapshot: Snapshot) -> Iterator[Sample]:
    for name, rate in snapshot["bad_rates"].items():
        yield {"application": name}, rate


def streams(key: str) -> Any:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for name, told in snapshot["applications"].items():
            yield {"application": name}, told["streams"][key]

    return read


def accuracy(snapshot: Snapshot) -> Iterator[Sample]:
    for name, told in snapshot["applications"].items():
        if told["rated"]:
            yield {"application": name}, told["expected_right"] / told["rated"]


def policy_figures(snapshot: Snapshot) -> Iterator[Sample]:
    for name, told in snapshot["policies"].items():
        for figure, value in told["figures"].items():
            yield {"application": name, "figure": figure}, value


def replanning(key: str) -> Callable[[Snapshot], Iterator[Sample]]:
    """Of the mapping of clients to variants; 0 where no policy has one."""

    def found(snapshot: Snapshot) -> Iterator[Sample]:
        yield {}, snapshot.get("replanning", {}).get(key, 0)

    return found


def application_busy(snapshot: Snapshot) -> Iterator[Sample]:
    for name, busy_ns in snapshot["busy_ns"].items():
        yield {"application": name}, busy_ns / SECOND


def _of_variant(told: dict[str, Any]) -> dict[str, str]:
    return {"application": told["application"], "variant": told["name"]}


def batch_sizes(snapshot: Snapshot) -> Iterator[Counts]:
    bounds = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for told in snapshot["variants"]:
        counts = [0] * (len(bounds) + 1)
        requests = 0
        for size, batches in told["batch_sizes"].items():
            place = sum(int(size) > bound for bound in bounds)
            counts[place] += batches
            requests += int(size) * batches
        yield _of_variant(told), {"bounds": bounds, "counts": counts, "sum": requests}, 1.0


def variant_requests(snapshot: Snapshot) -> Iterator[Sample]:
    for told in snapshot["variants"]:
        sizes = told["batch_sizes"].items()
        yield _of_variant(told), sum(int(size) * batches for size, batches in sizes)


def margin(snapshot: Snapshot) -> Iterator[Sample]:
    for told in snapshot["variants"]:
        yield _of_variant(told), told["margin_factor"]


def sub_cluster(key: str, unit: float = 1.0) -> Any:
    """One figure of every sub-cluster."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for number, told in enumerate(snapshot["ranks"]):
            yield {"subcluster": str(number)}, told[key] / unit

    return read


def idle(snapshot: Snapshot) -> Iterator[Sample]:
    for number, share in enumerate(snapshot["idle_fractions"]):
        yield {"subcluster": str(number)}, share


def single(key: str, unit: float = 1.0) -> Any:
    """A figure that there is one of."""

    def read(snapshot: Snapshot) -> Iterable[Sample]:
        return [({}, snapshot[key] / unit)]

    return read


def single_histogram(key: str) -> Any:
    def read(snapshot: Snapshot) -> Iterable[Counts]:
        return [({}, snapshot[key], SECOND)]

    return read


def frontend(key: str, unit: float = 1.0) -> Any:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for number, told in snapshot["processes"]["frontends"].items():
            yield {"frontend": str(number)}, told[key] / unit

    return read


def backend(key: str) -> Any:
    """What a backend says of itself; negative is unknown, and left out."""

    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for number, told in snapshot["processes"]["backends"].items():
            if told[key] >= 0:
                yield {"backend": str(number)}, told[key]

    return read


def process_memory(snapshot: Snapshot) -> Iterator[Sample]:
    for role, processes in snapshot["processes"].items():
        for number, told in processes.items():
            labels = {"role": role.removesuffix("s"), "number": str(number)}
            yield labels, told["memory_bytes"]


def backend_factor(snapshot: Snapshot) -> Iterator[Sample]:
    for number, told in snapshot["backends"].items():
        yield {"backend": str(number)}, told["factor"]


def backend_running(snapshot: Snapshot) -> Iterator[Sample]:
    for number, told in snapshot["backends"].items():
        yield {"backend": str(number)}, int(told["running"])


def loads(place: int, unit: float) -> Any:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for variant, counts in snapshot["loads"].items():
            yield {"variant": variant}, counts[place] / unit

    return read


def advice(key: str) -> Any:
    def read(snapshot: Snapshot) -> Iterator[Sample]:
        for number, told in enumerate(snapshot.get("scaling", {}).get("advice", [])):
            yield {"subcluster": str(number)}, told[key]

    return read


def moved(snapshot: Snapshot) -> Iterator[Sample]:
    if "scaling" in snapshot:
        yield {}, snapshot["scaling"]["moved"]


def count(key: str) -> Any:
    def read(snapshot: Snapshot) -> Iterable[Sample]:
        return [({}, len(snapshot[key]))]

    return read
