"""From a configuration and measured profiles to what routers and backends are told."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import floor

from fermata.applications.application import Application
from fermata.applications.reader import router_names
from fermata.applications.server_options import InputSpec
from fermata.applications.variant import Variant
from fermata.deployments.config.backend_groups import groups_of
from fermata.deployments.config.deployment import BackendConfig, DeploymentConfig
from fermata.deployments.config.pipelines import STAGES, graph_of
from fermata.deployments.config.served.environments import environment_of
from fermata.deployments.config.served.inputs import (
    check_input,
    decodes_later,
    image_of,
    input_of,
    input_shape,
    model_inputs,
    side_of,
)
from fermata.deployments.config.served.looks import peek_of
from fermata.deployments.config.served.shapes import in_shape
from fermata.deployments.config.served.signature import signature_of
from fermata.deployments.config.sub_clusters import (
    epochs_between,
    epochs_inside,
    loads_by_router,
)
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.served_model import ImageSpec
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.profiles.profile import Profile, slowed
from fermata.router.assembly import RouterConfig
from fermata.router.core.queries.pipeline import Pipeline
from fermata.router.policies.auto import AUTO, FIXED
from fermata.router.policies.catalog import check_sizes
from fermata.router.policies.sneakpeek.classes import Classes

CONTROL_CPUS = 0.1
"""CPU cores that Ray sets aside for the control plane."""
HELD = (AUTO, FIXED, STAGES)
"""Policies that hold requests for company."""
Profiles = Mapping[str, Profile]
"""By variant."""


def known_profiles(config: DeploymentConfig) -> dict[str, Profile]:
    """Those that the configuration itself says; the others have to be measured."""
    slower = config.backend.slower
    return {
        variant.name: variant.profile if slower == 1.0 else slowed(variant.profile, slower)
        for _, variant in variants(config)
        if variant.profile is not None
    }


def variants(config: DeploymentConfig) -> list[tuple[Application, Variant]]:
    """Every variant with its application."""
    return [(each, variant) for each in config.served for variant in each.variants]


def gpus_each(backend: BackendConfig, in_cluster: float) -> int:
    """GPUs to ask Ray for, for each backend: what is not asked for is not seen there."""
    if backend.device == "auto":
        return int(in_cluster >= backend.count)
    return int(backend.device == "cuda")


def check_gpus(backends: Sequence[BackendConfig], there: float) -> None:
    """Raise ConfigError where backends ask for GPUs that will never be there."""
    wanted = sum(each.count * gpus_each(each, there) for each in backends)
    if wanted > there:
        count = sum(each.count for each in backends)
        raise ConfigError(
            f"backend.device={backends[0].device} with count={count} needs {wanted} GPUs, and "
            f"there are {there:g} here; use device: auto or cpu, or a smaller count"
        )


def check_cpus(config: DeploymentConfig, there: float) -> None:
    """Raise ConfigError where processes ask for more CPU cores than there will ever be."""
    backends = [each.backend for each in groups_of(config)]
    count = sum(each.count for each in backends)
    asked = sum(each.count * each.cpus for each in backends)
    frontends, router = config.frontend.processes * config.frontend.cpus, config.router
    routers = config.sub_clusters.routers * router.cpus * (2 if router.standby else 1)
    others = frontends + routers + CONTROL_CPUS
    wanted = asked + others
    # Sums of such numbers are not exact.
    if round(wanted - there, 6) <= 0:
        return
    each = floor(10 * (there - others) / count) / 10
    remedy = f"backend.cpus={each:g} or less, or a smaller count"
    if each <= 0:
        remedy = "backend.cpus=0, and less for frontend.cpus and router.cpus"
    raise ConfigError(
        f"{count} backends, frontends and routers ask Ray for {wanted:g} CPU cores, and there are "
        f"{there:g} here; set {remedy}"
    )


def router_config(config: DeploymentConfig, profiles: Profiles, kind: str = "") -> RouterConfig:
    """The router's configuration; refuses an SLO that no batch of 1 can meet.

    `kind` is that of the backends which the profiles were measured on.
    """
    names, epochs = router_names(config.served), epochs_inside(config)
    return RouterConfig(
        applications=tuple(
            _application(each, name, profiles, config)
            for each, name in zip(config.served, names, strict=True)
        ),
        policy=config.router.policy,
        kind=kind,
        swap=config.backend.swap,
        policy_options={
            **presets(config.router.policy, is_scaled(config)),
            **config.router.policy_options,
        },
        sub_clusters=1 if epochs is None else epochs.sub_clusters,
        loads_all=loads_by_router(config),
        moves=epochs_between(config) is not None,
        fair_shares=config.router.fair_shares,
        shared_backends=config.shares_backends,
        pipelines=_pipelines(config, profiles),
    )


def _pipelines(config: DeploymentConfig, profiles: Profiles) -> dict[str, Pipeline]:
    """The pipelines by name; refuses an SLO that no query can meet."""
    found: dict[str, Pipeline] = {}
    for each in config.pipelines:
        graph = found[each.name] = graph_of(each, config.served)
        needed_ns = graph.longest_ns(lambda number: _fastest_ns(config, profiles, number))[0]
        if needed_ns > graph.slo_ns:
            raise ConfigError(
                f"slo_ms={each.slo_ms:g} of pipeline {each.name} is below {needed_ns / 1e6:.3g} "
                "ms, the run times of its stages at batch 1; raise it"
            )
    return found


def _fastest_ns(config: DeploymentConfig, profiles: Profiles, number: int) -> int:
    return min(profiles[each.name].latency_ns(1) for each in config.served[number].variants)


def is_scaled(config: DeploymentConfig) -> bool:
    """Whether the number of backends changes; a dry run only advises."""
    return config.autoscaler is not None and not config.autoscaler.dry_run


def presets(policy: str, scaled: bool = False) -> dict[str, str]:
    """Options that a policy has unless the file sets them.

    A fixed fleet holds requests only while that raises goodput; a scaled one is there to be used.
    """
    return {"hold": "deferred" if scaled else "auto"} if policy in HELD else {}


def _application(
    application: Application, name: str, profiles: Profiles, config: DeploymentConfig
) -> Application:
    swaps, swap = config.repository == "fixed", config.backend.swap
    variants = tuple(_variant(variant, profiles, swaps, swap) for variant in application.variants)
    fastest = min(variants, key=lambda variant: variant.p50_ns[0])
    if fastest.p50_ns[0] > application.slo_ns:
        raise ConfigError(
            f"slo_ms={application.slo_ns / 1e6:g} of {application.name} is below "
            f"{fastest.p50_ns[0] / 1e6:.3g} ms, the run time of {fastest.name} at batch 1; raise it"
        )
    served = replace(application, variants=variants)
    check_sizes(application.policy or config.router.policy, served)
    return replace(
        served,
        name=name,
        policy_options={
            **presets(application.policy, is_scaled(config)),
            **application.policy_options,
        },
        reply_ns=ms(config.frontend.reply_ms),
        classes=_classes(application, profiles),
    )


def _classes(application: Application, profiles: Profiles) -> Classes | None:
    given = application.class_options
    if given is None:
        return None
    recalls = [each.recall or profiles[each.name].recall for each in application.variants]
    for variant, recall in zip(application.variants, recalls, strict=True):
        if not recall:
            raise ConfigError(
                f"variant {variant.name!r} of {application.name} has no recall by class; give it, "
                "or measure it with `fermata profile --data`"
            )
    model = peek_of(application)
    counts = profiles[application.variants[0].name].counts
    return Classes(
        recall=tuple(recalls),
        counts=counts if len(counts) == len(recalls[0]) else (),
        weights=given.weights,
        recall_floors=given.recall_floors,
        peek=None if model is None else model.peek,
        prior=given.prior,
    )


def _variant(variant: Variant, profiles: Profiles, swaps: bool, swap: bool = False) -> Variant:
    """`swaps`: a variant that is not there may be brought in; not where a client took it away.
    `swap`: backends hold one at a time, so that each has to be brought in now and then."""
    profile = profiles[variant.name]
    p50_ns = tuple(profile.table_ns(variant.batch_size_max))
    p99_ns = None
    if profile.linear_ns is None:
        p99_ns = tuple(profile.table_ns_p99(len(p50_ns)))
    return replace(
        variant,
        p50_ns=p50_ns,
        p99_ns=p99_ns,
        swap_in_ns=swap_in_of(variant, profile, swaps, swap),
        accuracy=profile.accuracy if variant.accuracy is None else variant.accuracy,
        input_size=side_of(variant) or profile.input_size or 0,
    )


def swap_in_of(variant: Variant, profile: Profile, swaps: bool, swap: bool) -> int:
    """Time to bring a variant in, in nanoseconds; 0: it is not brought in."""
    if swap and variant.swap_in_ns is not None:
        return max(1, variant.swap_in_ns)
    known_ns = profile.swap_in_ns if swaps else 0
    # Where nobody has measured it, a swap-in is a load; what it takes will be learnt.
    return known_ns or max(1, profile.load_ns) if swap else known_ns


def measured_costs(
    config: DeploymentConfig, profiles: Profiles
) -> tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]:
    """(variant, p50, p99 by batch size) of what the configuration does not say for every kind."""
    known = known_profiles(config) if config.backend.slower == 1.0 else {}
    found: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    for _, variant in variants(config):
        if variant.name not in known:
            served = _variant(variant, profiles, swaps=False)
            found.append((variant.name, served.p50_ns, served.p99_ns or served.p50_ns))
    return tuple(found)


def model_specs(config: DeploymentConfig, profiles: Profiles) -> list[ModelSpec]:
    """Models that every backend loads."""
    specs: list[ModelSpec] = []
    for application, variant in variants(config):
        signature = signature_of(application, variant.model)
        given = input_of(application, signature)
        if not given.sized:
            check_input(application, variant, given)
        emulated = profiles[variant.name] if variant.model == "emulated" else None
        spec = ModelSpec(
            variant.name,
            variant.model,
            variant.batch_size_max,
            input_shape(variant, given),
            given.dtype,
            () if emulated is None else tuple(emulated.table_ns(variant.batch_size_max)),
            0 if emulated is None else emulated.static_bytes,
            frames=image_of(application, given) if given.sized else None,
            picture=_passed_on(config, application, given),
            precision=variant.precision,
            finite_outputs=application.finite_outputs,
            inputs=model_inputs(application, signature, given),
            keeps_state=application.sequences,
            outputs=() if signature is None else signature.outputs,
            environment=environment_of(application, variant),
        )
        specs.append(in_shape(spec, application, config.backend.swap))
    return specs


def _passed_on(
    config: DeploymentConfig, application: Application, given: InputSpec
) -> ImageSpec | None:
    """Pictures that a backend gets as they came, to be decoded there."""
    return image_of(application, given) if decodes_later(config, application) else None
