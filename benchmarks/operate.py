"""Operating a deployment: what looking at it costs, what an upgrade loses, how soon it answers."""

from collections.abc import Callable, Iterator, Sequence

from benchmarks.figures import Figure, run_parts

PARTS = {
    "counting": "CPU of metrics, page and logs at 10,000 req/s, without a server",
    "looking": "CPU of pages and scrapes of a server at load",
    "upgrade": "new code under load",
    "protocol": "the same, from code whose links speak the protocol before",
    "next": "the same, to code whose links speak a protocol after ours",
    "canary": "a bad version of a model on trial under load",
    "warm": "from `make serve` to the first answer, set up before",
    "cold": "the same in a fresh clone that has to set everything up; installs gigabytes",
}
ASKED = ("cold",)
"""Measured only where named."""


def counting(quick: bool) -> Iterator[Figure]:
    from benchmarks.metrics_cost import measure

    yield from measure(quick)


def looking(quick: bool) -> Iterator[Figure]:
    from benchmarks.lookers import measure

    yield from measure(quick)


def upgrade(quick: bool) -> Iterator[Figure]:
    from benchmarks.upgrades import SAME, measure

    yield from measure(SAME)


def protocol(quick: bool) -> Iterator[Figure]:
    from benchmarks.upgrades import FROM_BEFORE, measure

    yield from measure(FROM_BEFORE)


def next_protocol(quick: bool) -> Iterator[Figure]:
    from benchmarks.upgrades import TO_NEXT, measure

    yield from measure(TO_NEXT)


def canary(quick: bool) -> Iterator[Figure]:
    from benchmarks.bad_version import measure

    yield from measure(quick)


def warm(quick: bool) -> Iterator[Figure]:
    from benchmarks.first_answer import measure_here

    yield from measure_here()


def cold(quick: bool) -> Iterator[Figure]:
    from benchmarks.first_answer import measure_in_a_clone

    yield from measure_in_a_clone()


# Each imports what it needs: counting needs no server.
MEASURES: dict[str, Callable[[bool], Iterator[Figure]]] = {
    "counting": counting,
    "looking": looking,
    "upgrade": upgrade,
    "protocol": protocol,
    "next": next_protocol,
    "canary": canary,
    "warm": warm,
    "cold": cold,
}


def measure(parts: Sequence[str], quick: bool) -> Iterator[Figure]:
    for part in parts:
        yield from MEASURES[part](quick)


if __name__ == "__main__":
    run_parts("Operating", measure, PARTS, ASKED)
