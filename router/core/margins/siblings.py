"""Variants of one application, among which a policy chooses."""

from collections.abc import Sequence

from fermata.router.core.margins.ratios import CostRules


class Siblings:
    """Notices variants that have not run while others have."""

    __slots__ = ("batches", "patience", "places", "ran", "rules", "since", "variants")

    def __init__(self, variants: Sequence[int], rules: CostRules) -> None:
        self.variants = tuple(variants)
        self.rules = rules
        self.places = {variant: place for place, variant in enumerate(self.variants)}
        self.batches = 0
        """Of all of them."""
        self.since = [0] * len(self.variants)
        """By place: the number of its last batch, or of that at which it was last tried."""
        self.ran = [0] * len(self.variants)
        """Batches since it was."""
        self.patience = [rules.trial_after] * len(self.variants)

    def passed_over(self, variant: int) -> int:
        """A variant has run: one that has not for long, if it is its turn to be looked at; or -1.
        One look at each batch, so that a large family costs no more."""
        self.batches += 1
        place, turn = self.places[variant], self.batches % len(self.variants)
        self.since[place] = self.batches
        self.ran[place] += 1
        if self.ran[place] == self.rules.ratio_window:
            self.patience[place] = self.rules.trial_after
        if self.batches - self.since[turn] < self.patience[turn]:
            return -1
        return self.variants[turn]

    def on_trial(self, variant: int) -> None:
        """It is tried: wait twice as long the next time, unless it has run often by then."""
        place = self.places[variant]
        self.since[place], self.ran[place] = self.batches, 0
        self.patience[place] = min(2 * self.patience[place], self.rules.trial_after_max)
