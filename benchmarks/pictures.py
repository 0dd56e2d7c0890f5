"""Pictures and cameras: who is harmed by cameras that lie, and what kinds of GPUs are planned for.

`python -m benchmarks.pictures [--json] [--quick] [--only PART]`
"""

from collections.abc import Callable, Iterator, Sequence

from benchmarks.camera_rates import VARIANT, misses
from benchmarks.figures import Figure, run_parts
from fermata.foundation.units import ms
from fermata.router.policies.application import RunTimes, VariantSpec

PARTS = {
    "liars": "cameras that send more frames than they declare",
    "kinds": "cameras on two kinds of GPU",
}
DECLARED = (8.0, 1.0, 0.0)
HONEST = 4
SLOWER = 3


def liars(quick: bool) -> Iterator[Figure]:
    """Misses of four honest cameras beside two that send 30 frames a second and say less."""
    for declared in DECLARED[: 1 if quick else None]:
        sent = [30.0, 30.0, *[8.0] * HONEST]
        said = [declared, declared, *[8.0] * HONEST]
        found = misses(sent, said, 20 if quick else 120)
        told = f"two of six cameras send 30 frames/s and declare {declared:g}"
        yield Figure(f"{told}: most misses of an honest one", max(found[2:]), "share", 0.01, True)


def kinds(quick: bool) -> Iterator[Figure]:
    """Misses of cameras on a fast GPU and one that is three times slower, most of all cameras."""
    slow = RunTimes(tuple(SLOWER * each for each in VARIANT.p50_ns))
    small = tuple(ms(each) for each in (6, 10, 14, 17))
    large = VariantSpec("large", VARIANT.p50_ns, accuracy=0.8, input_size=320, other_kinds=(slow,))
    zoo = (
        VariantSpec(
            "small",
            small,
            accuracy=0.5,
            input_size=160,
            other_kinds=(RunTimes(tuple(SLOWER * each for each in small)),),
        ),
        large,
    )
    cameras = [8.0] * 10
    seconds = 20 if quick else 120
    found = misses(cameras, cameras, seconds, zoo, (0, 1))
    told = f"ten cameras on a GPU and one {SLOWER} times slower: most misses of a camera"
    yield Figure(told, max(found), "share", 0.01, True)


MEASURES: dict[str, Callable[[bool], Iterator[Figure]]] = {"liars": liars, "kinds": kinds}


def measure(only: Sequence[str], quick: bool) -> Iterator[Figure]:
    for part in only:
        yield from MEASURES[part](quick)


if __name__ == "__main__":
    run_parts("Pictures and cameras", measure, PARTS)
