"""An application as its policy, the router, simulations and deployments share it.

Each option is declared here once. Serving files and scenarios read it by its type, and a policy
reads it from `Family.spec`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fermata.foundation.sections import Count, Fraction, Positive, PositiveTime, Resolved, Time
from fermata.router.policies.sneakpeek.classes import Classes


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Run times of batches of 1, 2, 3 and so on, on one kind of backend."""

    p50_ns: tuple[int, ...]
    p99_ns: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One model that can serve an application."""

    name: str
    """Unique in a deployment; clients see it in answers."""
    p50_ns: Resolved[tuple[int, ...]] = ()
    """Median run time of batches of 1, 2, 3 and so on; its length is the largest batch."""
    p99_ns: Resolved[tuple[int, ...] | None] = None
    """Seeds the margin until execution has taught a better one."""
    other_kinds: Resolved[tuple[RunTimes, ...]] = ()
    """Run times on kinds 1, 2 and so on, where kinds of backends are known from the start."""
    swap_in_ns: Time | None = None
    """To bring it back where backends hold one model at a time; the profile's, or its load time,
    where absent."""
    accuracy: Fraction | None = None
    """Share of right answers; the profile's where absent. Policies that choose need it."""
    input_size: Count = 0
    """Side of its pictures, where variants differ in it; as in its model's name (`@160`) or its
    profile where absent."""
    batch_size_max: Count = 0
    """No batch is larger; absent: 64 where it is served, what the SLO allows where simulated."""


@dataclass(frozen=True, slots=True)
class ApplicationSpec:
    """A task with an SLO: what clients call a model."""

    name: str
    """The model name that clients use."""
    slo_ns: PositiveTime
    """Target from arrival to answer, unless a request asks for less with `timeout`."""
    variants: tuple[VariantSpec, ...]
    """The models that can serve it."""
    serving: str = ""
    """The variant that serves unless the policy chooses; the first where absent. The policy `auto`
    runs no other where it is set."""
    newest: bool = False
    """A new frame of a stream replaces the queued one; in simulations, streams are `clients`."""
    sequences: bool = False
    """Its model keeps a state between the requests of a sequence: they run in order, on the backend
    that the sequence was started on."""
    sequence_idle_ns: PositiveTime = 0
    """A sequence without a request for so long ends; absent: a minute."""
    policy: str = ""
    """A policy of its own, in place of the router's; see docs/scenarios.md."""
    policy_options: Mapping[str, object] = field(default_factory=dict)
    """Options of that policy."""
    backend_share: Positive = 1.0
    """Its part of the backends, or of their time where they are too few for all, if policies have
    queues for single backends."""
    fair_share: Positive = 1.0
    """Its part of the backends, relative to others, when not all can be served."""
    accuracy_floor: Fraction = 0.0
    """Variants below it never run; refused at the start where the only one that may does not
    reach it."""
    streams: Resolved[bool] = False
    """Share overload evenly among the clients' streams."""
    weights: Resolved[Mapping[int, float]] = field(default_factory=dict)
    """Weights of streams, by client; 1 where absent."""
    classes: Resolved[Classes | None] = None
    """Recall by class, and how to read evidence of a request's content."""
    reply_ns: Resolved[int | None] = None
    """Taken off a client's SLO by frontends, for the way of the answer; None: not known."""
    hard_limit_ns: PositiveTime = 0
    """An answer after it is worthless and not computed; `slo_ms` where absent."""

    @property
    def limit_ns(self) -> int:
        """After which an answer is worthless."""
        return self.hard_limit_ns or self.slo_ns

    @property
    def serving_place(self) -> int:
        """Index of the variant that serves unless the policy chooses."""
        names = [variant.name for variant in self.variants]
        return names.index(self.serving) if self.serving else 0

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Accuracy of each variant, by recall where classes are known; empty where one is not."""
        known = [each.accuracy for each in self.variants if each.accuracy is not None]
        if len(known) == len(self.variants):
            return tuple(known)
        if self.classes is None:
            return ()
        return tuple(sum(recall) / len(recall) for recall in self.classes.recall)
