"""Policies by the name that users write, with their options read and checked.

Those that need numpy or a solver are imported where they are built: a router that starts anew has
no time for what it does not run.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

from fermata.foundation.refusals import check_number, refuse
from fermata.foundation.units import NEVER, ms
from fermata.router.core.source import Source
from fermata.router.policies.application import ApplicationSpec
from fermata.router.policies.auto import (
    AUTO,
    CHOOSING_STAGES,
    FIXED_STAGES,
    AutoOptions,
    resolved,
)
from fermata.router.policies.baselines.batch_queues import BatchQueues, BatchQueuesOptions
from fermata.router.policies.baselines.load_granular import (
    JellyfishPlusOptions,
    LoadGranular,
    ModelSwitchingOptions,
)
from fermata.router.policies.baselines.partitioned import Partitioned, PartitionedOptions
from fermata.router.policies.baselines.single_queue import SingleQueue, SingleQueueOptions
from fermata.router.policies.baselines.timeout import TimeoutBatching, TimeoutOptions
from fermata.router.policies.central.options import CentralOptions
from fermata.router.policies.central.source import CentralQueue
from fermata.router.policies.deferred import ModelThread
from fermata.router.policies.deferred_options import EAGER, HOLDS, PUBLISHED, DeferredOptions
from fermata.router.policies.family import Family
from fermata.router.policies.jellyfish.decision import SELECTIONS
from fermata.router.policies.jellyfish.options import JellyfishOptions
from fermata.router.policies.pipelines.stages import STAGES, StageThread
from fermata.router.policies.pipelines.variant_stages import VariantStage
from fermata.router.policies.ramsis.options import BALANCINGS, REWARDS, RamsisOptions
from fermata.router.policies.rl.options import SlotRoutingOptions
from fermata.router.policies.routing.deadline import DeadlineRouting, RoutingOptions
from fermata.router.policies.sequences import SEQUENCES, SequenceOptions, SequenceQueues
from fermata.router.policies.sneakpeek import options as sneakpeek

Build = Callable[[Sequence[Family], Any, random.Random], list[Source]]


@dataclass(frozen=True, slots=True)
class Policy:
    """How to make the sources of a policy: one for each application, in order. Applications that
    share a policy and its options are built together, and may share a source."""

    defaults: Any
    build: Build
    fixed: frozenset[str] = frozenset()
    """Options that make the policy what it is, and so cannot be set."""
    chooses: bool = False
    """It picks variants, and so needs the accuracy of each."""
    needed: frozenset[str] = frozenset()
    """Options that have no default."""
    check: Callable[[Any], None] | None = None
    """Refuses options that are wrong or do not go together."""
    owns_backends: bool = False
    """Its sources run backends of their own, as `Source.owns_backends`."""
    shares_backends: bool = True
    """It can take turns with others on a backend."""
    tells_sizes: bool = False
    """Clients are told which size of picture to send."""
    together: bool = False
    """One source serves all applications that share the policy and its options."""
    counts_rows: bool = False
    """Requests may have several rows; for other policies, frontends split them into single ones."""


def _deferred(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [
        ModelThread(
            family.serving,
            options,
            family if family.classes is not None else None,
            family.slo_ns or NEVER,
        )
        for family in families
    ]


def _stages(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [StageThread(family.serving, options, None, family.slo_ns) for family in families]


def _variant_stages(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [VariantStage(family, options) for family in families]


def _batch_queues(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [BatchQueues(family.serving, options) for family in families]


def _timeout(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [TimeoutBatching(families, options, rng)] * len(families)


def _partitioned(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [Partitioned(families, options)] * len(families)


def _windows(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    from fermata.router.policies.sneakpeek.source import WindowScheduler

    return [WindowScheduler(families, options)] * len(families)


def _sneakpeek(preset: sneakpeek.SneakPeekOptions) -> Policy:
    return Policy(
        preset,
        _windows,
        frozenset(("order", "choice")),
        chooses=True,
        owns_backends=True,
        together=True,
    )


def _jellyfish(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    from fermata.router.policies.jellyfish.source import Jellyfish

    return [Jellyfish(family, options, rng) for family in families]


def _routing(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [DeadlineRouting(family, options) for family in families]


def _single_queue(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [SingleQueue(family, options) for family in families]


def _rl(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    from fermata.router.policies.rl.checkpoint import load_checkpoint
    from fermata.router.policies.rl.slot_routing import SlotRouting

    if not options.checkpoint:
        return [SlotRouting(family, options, None, rng) for family in families]
    checkpoint = load_checkpoint(options.checkpoint)
    for family in families:
        if family.slo_ns != checkpoint.scales.slo_ns:
            rule = f"was trained for an SLO of {checkpoint.scales.slo_ns / 1e6:g} ms; train one"
            refuse("policy_options.checkpoint", options.checkpoint, f"{rule} for {family.name}")
        if not checkpoint.variants and len(family.variants) <= max(checkpoint.tiers):
            rule = f"was trained for more variants than the {len(family.variants)}"
            refuse("policy_options.checkpoint", options.checkpoint, f"{rule} of {family.name}")
        names = [variant.name for variant in family.spec.variants]
        for tier in sorted(set(checkpoint.tiers)) if checkpoint.variants else ():
            if checkpoint.variants[tier] not in names:
                rule = f"was trained for a variant {checkpoint.variants[tier]!r}, and {family.name}"
                rule = f"{rule} has {', '.join(names)}; rename one, or train for these"
                refuse("policy_options.checkpoint", options.checkpoint, rule)
    options = replace(options, buffer=checkpoint.scales.buffer)
    return [SlotRouting(family, options, checkpoint, rng) for family in families]


def _central(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [CentralQueue(family, options) for family in families]


def _lookahead(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    from fermata.router.policies.lookahead.market import Market
    from fermata.router.policies.lookahead.source import LookaheadQueue

    markets: dict[object, Market] = {}
    return [LookaheadQueue(family, options, markets) for family in families]


def _auto(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    groups: dict[str, list[Family]] = {}
    for family in families:
        groups.setdefault(resolved(family.spec, AUTO, {})[0], []).append(family)
    built: dict[int, Source] = {}
    for policy, group in groups.items():
        entry = POLICIES[policy]
        own = replace(entry.defaults, hold=options.hold, hold_ns_max=options.hold_ns_max)
        sources = entry.build(group, own, rng)
        built.update(zip((family.application for family in group), sources, strict=True))
    return [built[family.application] for family in families]


def _ramsis(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    from fermata.router.policies.ramsis.slo_classes import classes_of

    return [classes_of(family, options) for family in families]


def _check_ramsis(options: Any) -> None:
    from fermata.router.policies.ramsis.laws import check_ramsis

    check_ramsis(options)


def _sequences(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [SequenceQueues(family, options) for family in families]


def _load_granular(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    return [LoadGranular(family, options) for family in families]


def _model_switching(families: Sequence[Family], options: Any, rng: random.Random) -> list[Source]:
    for family in families:
        known = len(options.sustained_rps)
        if known != len(family.variants):
            rule = f"must hold the load that each of {len(family.variants)} variants sustains"
            refuse("policy_options.sustained_rps", list(options.sustained_rps), rule)
    return _load_granular(families, options, rng)


POLICIES: dict[str, Policy] = {
    "deferred": Policy(DeferredOptions(), _deferred, counts_rows=True),
    "published": Policy(PUBLISHED, _deferred, counts_rows=True),
    "eager": Policy(EAGER, _deferred, frozenset(("hold",)), counts_rows=True),
    "timeout": Policy(
        TimeoutOptions(), _timeout, owns_backends=True, shares_backends=False, together=True
    ),
    FIXED_STAGES: Policy(STAGES, _stages, counts_rows=True),
    CHOOSING_STAGES: Policy(STAGES, _variant_stages, chooses=True, counts_rows=True),
    "batch-queues": Policy(BatchQueuesOptions(), _batch_queues),
    "partitioned": Policy(
        PartitionedOptions(), _partitioned, owns_backends=True, shares_backends=False, together=True
    ),
    "sneakpeek": _sneakpeek(sneakpeek.SNEAKPEEK),
    "grouped": _sneakpeek(sneakpeek.GROUPED),
    "lo-edf": _sneakpeek(sneakpeek.LO_EDF),
    "lo-priority": _sneakpeek(sneakpeek.LO_PRIORITY),
    "maxacc-edf": _sneakpeek(sneakpeek.MAXACC_EDF),
    "jellyfish": Policy(
        JellyfishOptions(),
        _jellyfish,
        frozenset(("replan_here",)),
        chooses=True,
        tells_sizes=True,
        owns_backends=True,
    ),
    "routing": Policy(RoutingOptions(), _routing, chooses=True, owns_backends=True),
    "rl": Policy(
        SlotRoutingOptions(),
        _rl,
        fixed=frozenset(("aware", "buffer")),
        chooses=True,
        needed=frozenset(("checkpoint",)),
        owns_backends=True,
    ),
    "single-queue": Policy(SingleQueueOptions(), _single_queue, chooses=True, owns_backends=True),
    "central-queue": Policy(CentralOptions(), _central, chooses=True),
    "lookahead": Policy(
        CentralOptions(), _lookahead, frozenset(("calm", "strained")), chooses=True
    ),
    "ramsis": Policy(
        RamsisOptions(), _ramsis, chooses=True, check=_check_ramsis, owns_backends=True
    ),
    "jellyfish-plus": Policy(JellyfishPlusOptions(), _load_granular, chooses=True),
    "model-switching": Policy(ModelSwitchingOptions(), _model_switching, chooses=True),
    SEQUENCES: Policy(SequenceOptions(), _sequences),
    AUTO: Policy(AutoOptions(), _auto),
}


OWNERS_SHOWN = 4
"""Owners of backends that a refusal names."""
WORDS = {"hold": HOLDS, "reward": REWARDS, "balancing": BALANCINGS}
"""Options that take one of a few words."""


def read_options(policy: str, given: Mapping[str, object]) -> Any:
    """The policy's options with the given ones set; times are given in `_ms`."""
    entry = POLICIES[policy]
    names = {
        field.name.replace("_ns", "_ms"): field.name
        for field in fields(entry.defaults)
        if field.name not in entry.fixed
    }
    values: dict[str, object] = {}
    for key, value in given.items():
        where = f"policy_options.{key}"
        if key not in names:
            allowed = ", ".join(sorted(names)) or "none"
            refuse(where, value, f"unknown option of {policy}; allowed: {allowed}")
        values[names[key]] = _read(where, key, value, getattr(entry.defaults, names[key]))
    for name in sorted(entry.needed - values.keys()):
        refuse(f"policy_options.{name}", None, f"is needed by {policy}")
    options = replace(entry.defaults, **values)
    if entry.check is not None:
        entry.check(options)
    return options


def _read(where: str, key: str, value: object, default: object) -> object:
    if key in WORDS:
        if value not in WORDS[key]:
            refuse(where, value, f"must be one of {', '.join(WORDS[key])}")
        return value
    if key == "selection":
        if value not in SELECTIONS:
            refuse(where, value, f"must be one of {', '.join(SELECTIONS)}")
        return value
    if isinstance(default, bool):
        if not isinstance(value, bool):
            refuse(where, value, "must be true or false")
        return value
    if isinstance(default, tuple):
        numbers = value if isinstance(value, list | tuple) else None
        if numbers is None or not all(type(each) in (int, float) for each in numbers):
            refuse(where, value, "must be a list of numbers")
        for each in numbers:
            check_number(where, each)
        return tuple(float(each) for each in numbers)
    if isinstance(default, str):
        if not isinstance(value, str):
            refuse(where, value, "must be a word")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(where, value, "must be a number")
    check_number(where, value)
    if "_ms" in key:
        return ms(value)
    if isinstance(default, int):
        if value != int(value):
            refuse(where, value, "must be a whole number")
        return int(value)
    return float(value)


def check_movable(policies: Iterable[str]) -> None:
    """Refuse policies whose applications cannot change sub-clusters, as `epochs` would have it."""
    movable = [name for name, policy in POLICIES.items() if not policy.owns_backends]
    for policy in policies:
        if policy not in movable:
            rule = "has backends of its own, which epochs inside one router cannot move; give each "
            rule += "sub-cluster a router (sub_clusters.count), leave epochs out, or take"
            refuse("policy", policy, f"{rule} one of {', '.join(movable)}")


def group_of(policy: str, options: Mapping[str, object]) -> str:
    """Names the applications that are built together: of one policy and one set of options."""
    return f"{policy} {sorted(options.items())}"


def check_sizes(policy: str, application: ApplicationSpec) -> None:
    """Refuse a zoo whose clients could not be told which size to send."""
    unsized = [each.name for each in application.variants if each.input_size <= 0]
    if POLICIES[policy].tells_sizes and unsized:
        rule = "needs the side of its pictures, since clients are told what to send; give one"
        refuse(f"input_size of {unsized[0]}", 0, rule)


AppliedPolicy = tuple[str, str, Mapping[str, object]]
"""An application, its policy, and that one's options."""


def owners_among(applied: Iterable[AppliedPolicy]) -> dict[str, AppliedPolicy]:
    """One application of each owner of backends. Those that pool all backends are one together."""
    owners: dict[str, AppliedPolicy] = {}
    for each in applied:
        name, policy, options = each
        entry = POLICIES[policy]
        group = group_of(policy, options) if entry.together else name
        owners.setdefault(group if entry.owns_backends else "pool", each)
    return owners


def shares_backends(backends: int, applied: Iterable[AppliedPolicy]) -> bool:
    """Whether there are fewer backends than owners, so that they have to take turns."""
    return len(owners_among(applied)) > backends


def check_backends(
    where: str, backends: int, applied: Iterable[AppliedPolicy], pooled: bool = True
) -> None:
    """Refuse fewer backends than owners, where one of them cannot share.

    Applications that pool all backends are no owner where `pooled` is false.
    """
    owners = owners_among(applied)
    if not pooled:
        owners.pop("pool", None)
    lone = [each for each in owners.values() if not POLICIES[each[1]].shares_backends]
    if len(owners) > backends and lone:
        shown = [f"{name}: {policy}" for name, policy, _ in islice(lone, OWNERS_SHOWN)]
        shown += ["..."] * (len(lone) > OWNERS_SHOWN)
        rule = f"there are {len(owners)} owners of backends, and some share none"
        remedy = f"give at least {len(owners)}, or another policy"
        refuse(where, backends, f"{rule} ({', '.join(shown)}); {remedy}")


def build_sources(
    policy: str, given: Mapping[str, object], families: Sequence[Family], rng: random.Random
) -> list[Source]:
    """The source of each of these applications, in order."""
    return POLICIES[policy].build(families, read_options(policy, given), rng)
