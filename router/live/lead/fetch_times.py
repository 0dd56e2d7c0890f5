"""Fetch times of one application between two nodes: the recent past, and what to plan with."""

from collections import deque
from collections.abc import Sequence

from fermata.foundation.units import SECOND, ms

WINDOW = 256
"""Samples kept at most."""
KEPT = 32
MEMORY_NS = SECOND
"""Samples older than this are forgotten, except the last few."""
SUSPECT, SINCE = 2, 4
"""An older sample goes where it took so many times as long as each of the last four."""
LEAD_QUANTILE = 0.98
"""A held batch is planned to end at its deadline: every start later than this makes it late. The
quantile has to leave room within the share of bad requests that one tolerates."""
USUAL = 9
"""Samples whose median is the usual fetch: a change shows after five, a few accidents do not."""
KNOWN = 3
"""Samples below which nothing is known: one alone may be an accident."""
YOUNG = 16
"""Samples that count at once; later ones count after a while."""
LOOK_NS, SOON_NS = ms(250), ms(50)
"""This while: soon where a few fetches are slower than usual and may be over."""
STEP_NS = ms(1)
"""A sample that is off by more than this counts at once, too."""
TELLING = 8
"""Small batches, and large ones, that show what each request adds."""
MORE_NS_MIN = ms(0.5)
"""With less between small and large batches, a part per request is not worth planning with."""
PATIENCE_NS, PATIENCE_NS_MAX = ms(125), ms(1500)
"""Time until what looks too slow is tried again; it doubles with each trial in vain."""

Sample = tuple[int, int, int]
"""(when, number of inputs, time from dispatch to the last input)."""


def quantile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class FetchTimes:
    """Learns the time from a batch's dispatch to the arrival of its inputs: d_ctrl + d_data b."""

    __slots__ = (
        "look_at_ns",
        "patience_ns",
        "per_request_ns",
        "samples",
        "start_ns",
        "try_at_ns",
        "usual_ns",
    )

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque()
        self.start_ns = 0
        """The part of every batch, which nearly all keep to."""
        self.per_request_ns = 0
        """The part of each request."""
        self.usual_ns = 0
        """The median of the last few, for a batch of one."""
        self.look_at_ns = 0
        self.try_at_ns = 0
        """Earliest time of the next trial, should it be too slow."""
        self.patience_ns = PATIENCE_NS

    @property
    def used_at_ns(self) -> int:
        """Time of the last sample."""
        return self.samples[-1][0] if self.samples else 0

    def too_slow(self, room_ns: int) -> bool:
        """Whether a fetch usually takes longer than that."""
        return self.usual_ns > room_ns and len(self.samples) >= KNOWN

    def add(self, now_ns: int, size: int, took_ns: int, room_ns: int) -> bool:
        """Note a fetch that had so much time; return whether the estimate has changed."""
        samples = self.samples
        if took_ns <= room_ns < self.usual_ns:
            # The first one in time after many too slow: whatever made them slow is over.
            samples.clear()
            self.look_at_ns = self.try_at_ns = 0
            self.patience_ns = PATIENCE_NS
        samples.append((now_ns, size, took_ns))
        if len(samples) > WINDOW:
            samples.popleft()
        rest_ns = took_ns - self.per_request_ns * size
        if (
            now_ns < self.look_at_ns
            and rest_ns <= self.start_ns + STEP_NS
            and SUSPECT * rest_ns >= self.usual_ns - STEP_NS
        ):
            return False
        since_ns = now_ns - MEMORY_NS
        while len(samples) > KEPT and samples[0][0] < since_ns:
            samples.popleft()
        self._learn()
        if samples[0][0] < since_ns:
            self._forget_suspects(since_ns)
        if len(samples) >= YOUNG:
            calm = self.start_ns - self.usual_ns <= STEP_NS
            self.look_at_ns = now_ns + (LOOK_NS if calm else SOON_NS)
        return True

    def forget_slower_half(self) -> None:
        """Make the estimate smaller, down to nothing if asked again and again."""
        faster = sorted(self.samples, key=_took_ns)[: len(self.samples) // 2]
        self.samples = deque(sorted(faster))
        self.look_at_ns = 0
        self._learn()

    def try_again(self, now_ns: int) -> bool:
        """Whether a trial is due; if so, the next one is due later."""
        if now_ns < self.try_at_ns:
            return False
        self.try_at_ns = now_ns + self.patience_ns
        self.patience_ns = min(2 * self.patience_ns, PATIENCE_NS_MAX)
        return True

    def _learn(self) -> None:
        samples = self.samples
        if not samples:
            self.start_ns = self.per_request_ns = self.usual_ns = 0
            return
        self.per_request_ns = 0
        self._set([took_ns for _, _, took_ns in samples])
        # Were there a part per request, it would show in the slowest of all.
        if self.start_ns - self.usual_ns >= MORE_NS_MIN:
            each_ns = self.per_request_ns = self._slope_ns()
            if each_ns > 0:
                self._set([took_ns - each_ns * size for _, size, took_ns in samples])

    def _set(self, rest_ns: list[int]) -> None:
        """Set the estimate from the samples without the part of each request."""
        self.usual_ns = max(0, quantile(sorted(rest_ns[-USUAL:]), 0.5)) + self.per_request_ns
        rest_ns.sort()
        self.start_ns = max(0, quantile(rest_ns, LEAD_QUANTILE))

    def _slope_ns(self) -> int:
        """Time that each request adds, by the medians of small batches and of large ones."""
        octaves: dict[int, list[Sample]] = {}
        for sample in self.samples:
            octaves.setdefault(sample[1].bit_length(), []).append(sample)
        telling = [octave for octave, found in octaves.items() if len(found) >= TELLING]
        if len(telling) < 2:
            return 0
        small, large = octaves[min(telling)], octaves[max(telling)]
        more_ns = _median_ns(large) - _median_ns(small)
        if more_ns < MORE_NS_MIN:
            return 0
        return int(more_ns / (_mean_size(large) - _mean_size(small)))

    def _forget_suspects(self, since_ns: int) -> None:
        """Forget slow fetches that sparse traffic would take long to push out."""
        samples, each_ns = self.samples, self.per_request_ns
        last = [took_ns - each_ns * size for _, size, took_ns in list(samples)[-SINCE:]]
        limit_ns = SUSPECT * max(0, *last)
        kept = [
            (at_ns, size, took_ns)
            for at_ns, size, took_ns in samples
            if at_ns >= since_ns or took_ns - each_ns * size <= limit_ns
        ]
        if len(kept) < len(samples):
            self.samples = deque(kept)
            self._learn()


def _took_ns(sample: Sample) -> int:
    return sample[2]


def _median_ns(samples: Sequence[Sample]) -> int:
    return quantile(sorted([took_ns for _, _, took_ns in samples]), 0.5)


def _mean_size(samples: Sequence[Sample]) -> float:
    return sum([size for _, size, _ in samples]) / len(samples)
