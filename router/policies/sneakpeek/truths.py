"""True classes of requests, as clients tell them afterwards: what they teach, and how far."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TruthRules:
    """How much is made of what clients tell."""

    share_max: float = 0.2
    """Truths of one tenant that count, over the requests looked at: nobody can tell more of a
    stream than the stream itself does."""
    few: int = 20
    """Truths of one tenant that count in any case."""
    samples: int = 50
    """Samples behind a profiled recall, where they are not counted."""
    told_max: int = 400
    """Truths of one class and variant, from which on half of them are forgotten."""


class Truths:
    """Truths told so far, and recalls corrected by them."""

    rules: ClassVar[TruthRules] = TruthRules()

    def __init__(self, recall: npt.NDArray[np.float64], counts: Sequence[int]) -> None:
        """`recall` [variant][class] is corrected in place; `counts` are the samples behind it."""
        self.recall = recall
        self.profiled = recall.copy()
        self.samples = np.array(counts or (self.rules.samples,) * recall.shape[1], float)
        self.told = np.zeros(recall.shape)
        self.right = np.zeros(recall.shape)
        self.by_tenant: Counter[int] = Counter()
        self.count = 0
        """Truths that counted."""
        self.refused = 0
        """Truths beyond a tenant's share."""
        self.looks_told = 0
        self.looks_right = 0

    def admits(self, tenant: int, looked: int) -> bool:
        """Whether one more truth of this tenant counts, after so many requests looked at."""
        rules = self.rules
        if self.by_tenant[tenant] >= max(rules.few, rules.share_max * looked):
            self.refused += 1
            return False
        self.by_tenant[tenant] += 1
        self.count += 1
        return True

    def on_look(self, right: bool) -> None:
        """A look was the answer."""
        self.looks_told += 1
        self.looks_right += right

    def on_variant(self, variant: int, label: int, right: bool) -> None:
        """A variant answered a request of this class, right or not."""
        self.told[variant, label] += 1
        self.right[variant, label] += right
        if self.told[variant, label] >= self.rules.told_max:
            self.told[variant, label] /= 2
            self.right[variant, label] /= 2
        behind = self.samples[label]
        known = behind * self.profiled[variant, label] + self.right[variant, label]
        self.recall[variant, label] = known / (behind + self.told[variant, label])
