"""Targets of all sub-clusters, decided window by window (Symphony section 4.4)."""

from collections.abc import Sequence
from dataclasses import replace

from fermata.autoscaler.options import SPAN_SHARE_MIN, AutoscalerOptions, KindLimit
from fermata.autoscaler.readings import ClusterReading, window_between
from fermata.autoscaler.rule import (
    RuleOptions,
    RuleState,
    ScalingAdvice,
    advise,
    demand_of,
    without_memory,
)
from fermata.autoscaler.sub_cluster_limits import floors, hand_out, share_out
from fermata.autoscaler.window import Window
from fermata.partitioner.plan import PlacedModel, Plan


class Scaler:
    """The rule of every sub-cluster, with the window that is open on each."""

    def __init__(
        self,
        options: AutoscalerOptions,
        targets: Sequence[int],
        reading: ClusterReading,
        models: Sequence[PlacedModel] = (),
        own_counts: bool = False,
    ) -> None:
        """With `own_counts` each sub-cluster has counted what it has served itself. Else counts are
        by application, and go with it."""
        self.options = options
        self.own_counts = own_counts
        self.targets = tuple(targets)
        self.rules = own_rules(options, len(self.targets))
        self.set_models(models)
        self.states = [RuleState() for _ in self.targets]
        self.opened = [reading for _ in self.targets]
        """The reading at which the window of each sub-cluster was opened."""

    def set_models(self, models: Sequence[PlacedModel]) -> None:
        """Take the applications as their policies of now choose among variants."""
        self.goals = {each.name: each for each in models if each.accuracy is not None}
        """The applications with an accuracy to hold."""

    def on_reading(self, reading: ClusterReading) -> None:
        """Start anew the windows that a reading has cut."""
        # The router keeps the targets: another control plane may have set others.
        if len(reading.targets) == len(self.targets):
            self.targets = reading.targets
        for number, opened in enumerate(self.opened):
            if number in opened.closed:
                # Its counters have stood still, and tell of more than this window now.
                self.opened[number] = reading
            elif opened.term != reading.term:
                # Counters start again at 0. The load is the same, and so is the rule's memory.
                self.opened[number] = reading
            elif _has_moved(opened.plan, reading.plan, number):
                self.states[number] = without_memory(self.states[number])
                if not self.own_counts:
                    # An application takes its past to its new home. A window across a move would
                    # bill one home for the other: it is forgotten.
                    self.opened[number] = reading

    def on_window(
        self, reading: ClusterReading
    ) -> tuple[tuple[Window, ...], tuple[ScalingAdvice, ...]]:
        """The windows that end with this reading, and the advice on each; sets the targets."""
        windows: list[Window] = []
        advice: list[ScalingAdvice] = []
        for number, opened in enumerate(self.opened):
            window = window_between(opened, reading, number, self.targets[number], self.goals)
            windows.append(window)
            if number in reading.closed:
                self.opened[number] = reading
                reason = "its router does not answer" if self.targets[number] else "not needed"
                advice.append(self._wait(number, window, reason))
            elif reading.at_ns - opened.at_ns < SPAN_SHARE_MIN * self.options.window_ns:
                # It was cut short of late, and goes on until the next one ends.
                advice.append(self._wait(number, window, "its window has just begun"))
            else:
                advice.append(advise(self.rules[number], self.states[number], window))
                self.states[number] = advice[-1].state
                self.opened[number] = reading
        if not self.options.dry_run:
            self.targets = self._shared_out(advice, reading.closed)
        return tuple(windows), tuple(advice)

    def _shared_out(
        self, advice: Sequence[ScalingAdvice], closed: frozenset[int]
    ) -> tuple[int, ...]:
        """Targets within the limits; sub-clusters that are closed keep theirs."""
        rule, targets = self.options.rule, list(self.targets)
        limits = [(tuple(range(len(targets))), rule.minimum, rule.maximum)]
        if kinds := self.options.kinds:
            # Those of one kind cannot take the place of another: each has as many as there are.
            limits = [(each.sub_clusters, fewest(each), each.maximum) for each in kinds]
        for numbers, minimum, maximum in limits:
            held = sum(targets[number] for number in numbers if number in closed)
            told = [number for number in numbers if number not in closed]
            given = share_out(
                [advice[number].target for number in told],
                [advice[number].demand for number in told],
                max(0, minimum - held),
                max(0, maximum - held),
            )
            for number, target in zip(told, given, strict=True):
                targets[number] = target
        if sum(targets) <= rule.maximum:
            return tuple(targets)
        # All kinds together are too many: each sub-cluster keeps its fewest.
        parts = [
            target if number in closed else min(target, own.minimum)
            for number, (target, own) in enumerate(zip(targets, self.rules, strict=True))
        ]
        return hand_out(parts, targets, [each.demand for each in advice], rule.maximum)

    def _wait(self, number: int, window: Window, reason: str) -> ScalingAdvice:
        demand = demand_of(self.rules[number], window)
        return ScalingAdvice(self.targets[number], 0, reason, demand, self.states[number])


def fewest(kind: KindLimit) -> int:
    """The fewest backends of a kind: its sub-clusters have one each."""
    return max(kind.minimum, len(kind.sub_clusters))


def own_rules(options: AutoscalerOptions, count: int) -> list[RuleOptions]:
    """The rule of each sub-cluster. Its limits are parts of those of the deployment, or of those of
    its kind, whatever number of sub-clusters shares them."""
    rule = options.rule
    if not options.kinds:
        return [replace(rule, minimum=part) for part in floors(rule.minimum, count)]
    found = [rule] * count
    for kind in options.kinds:
        parts = floors(fewest(kind) if rule.minimum else 0, len(kind.sub_clusters))
        for number, part in zip(kind.sub_clusters, parts, strict=True):
            most = min(rule.maximum, kind.maximum)
            found[number] = replace(rule, minimum=min(part, most), maximum=most)
    return found


def _has_moved(then: Plan, now: Plan, sub_cluster: int) -> bool:
    """Whether other applications live in a sub-cluster now. Most readings have the same plan, and
    plans compare faster than the parts of them."""
    return then != now and then.models_of(sub_cluster) != now.models_of(sub_cluster)
