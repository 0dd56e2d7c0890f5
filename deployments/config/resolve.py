"""From a configuration and measured profiles to what each process is told."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from fermata.applications.application import Application
from fermata.applications.reader import bucketed, router_names
from fermata.applications.server_options import InputSpec
from fermata.applications.variant import Variant
from fermata.clients.wire.dtypes import NAMES
from fermata.deployments.config.deployment import BackendConfig, DeploymentConfig
from fermata.deployments.config.shapes import in_shape, with_buckets
from fermata.deployments.config.signature import check_same, named_inputs, signature_of
from fermata.deployments.models.catalog import describe
from fermata.deployments.models.digits import training_data
from fermata.deployments.models.minilm import Tokens
from fermata.deployments.models.model import Array, Card
from fermata.deployments.sneakpeek.store import SneakPeekModel, build_model, load_model
from fermata.deployments.specs.backend import ModelSpec
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import (
    OUTPUT,
    ImageSpec,
    Reader,
    ServedModel,
    Signature,
    TensorSpec,
)
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import ms
from fermata.profiles.profile import Profile
from fermata.router.assembly import RouterConfig
from fermata.router.policies.auto import AUTO, FIXED, resolved
from fermata.router.policies.catalog import POLICIES, check_sizes
from fermata.router.policies.sneakpeek.classes import Classes

EMBEDDED = "digits"
"""In place of a file: a SneakPeek model of the digits that embedded models are trained on."""
Profiles = Mapping[str, Profile]
"""By variant."""


def known_profiles(config: DeploymentConfig) -> dict[str, Profile]:
    """Those that the configuration itself says; the others have to be measured."""
    found: dict[str, Profile] = {}
    for _, variant in variants(config):
        if variant.profile is not None:
            found[variant.name] = variant.profile
    return found


def variants(config: DeploymentConfig) -> list[tuple[Application, Variant]]:
    """Every variant with its application."""
    return [(each, variant) for each in config.served for variant in each.variants]


def gpus_each(backend: BackendConfig, in_cluster: float) -> int:
    """GPUs to ask Ray for, for each backend: what is not asked for is not seen there."""
    if backend.device == "auto":
        return int(in_cluster >= backend.count)
    return int(backend.device == "cuda")


def check_gpus(backend: BackendConfig, there: float) -> None:
    """Raise ConfigError where backends ask for GPUs that will never be there."""
    wanted = backend.count * gpus_each(backend, there)
    if wanted > there:
        raise ConfigError(
            f"backend.device={backend.device} with count={backend.count} needs {wanted} GPUs, and "
            f"there are {there:g} here; use device: auto or cpu, or a smaller count"
        )


def router_config(config: DeploymentConfig, profiles: Profiles, kind: str = "") -> RouterConfig:
    """The router's configuration; refuses an SLO that no batch of 1 can meet.

    `kind` is that of the backends which the profiles were measured on.
    """
    names = router_names(config.served)
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
        sub_clusters=1 if config.epochs is None else config.epochs.sub_clusters,
        fair_shares=config.router.fair_shares,
        shared_backends=config.shares_backends,
    )


def is_scaled(config: DeploymentConfig) -> bool:
    """Whether the number of backends changes; a dry run only advises."""
    return config.autoscaler is not None and not config.autoscaler.dry_run


def presets(policy: str, scaled: bool = False) -> dict[str, str]:
    """Options that a policy has unless the file sets them.

    A fixed fleet holds requests only while that raises goodput; a scaled one is there to be used.
    """
    return {"hold": "deferred" if scaled else "auto"} if policy in (AUTO, FIXED) else {}


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


def peek_of(application: Application) -> SneakPeekModel | None:
    """The application's SneakPeek model, checked against its data."""
    given = application.class_options
    # Simulations make one up where there is no file; a server has none then.
    if given is None or not given.sneakpeek or not isinstance(given.sneakpeek, str):
        return None
    if given.sneakpeek == EMBEDDED:
        model = build_model(*training_data())
    else:
        model = load_model(Path(given.sneakpeek), Path(given.data) if given.data else None)
    spec = input_of(application)
    _check_peek(application, spec, model.input_shape)
    return replace(model, fit=spec.fit) if spec.sized else model


def _check_peek(application: Application, spec: InputSpec, shape: tuple[int, ...]) -> None:
    """Refuse a SneakPeek model that could not look at the application's inputs."""
    if spec.sized:
        if len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]:
            return
        rule = "looks at pictures of any size need a model of square ones, [3, side, side]"
    elif math.prod(shape) == math.prod(spec.shape) or min(spec.shape, default=0) < 0:
        return
    else:
        rule = f"requests of {application.name} are {list(spec.shape)}"
    raise ConfigError(
        f"sneakpeek of {application.name} was built from samples of {list(shape)}: {rule}; build "
        "it again from inputs as they are sent"
    )


def peeks(config: DeploymentConfig) -> dict[str, SneakPeekModel]:
    """SneakPeek models of frontends, by the router's name of the application."""
    names = router_names(config.served)
    found = {name: peek_of(each) for name, each in zip(names, config.served, strict=True)}
    return {name: model for name, model in found.items() if model is not None}


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


def side_of(variant: Variant) -> int:
    """Side of the pictures that a variant takes, as the configuration says it; 0: not at all."""
    if variant.input_size:
        return variant.input_size
    _, at, size = variant.model.rpartition("@")
    return int(size) if at and size.isdecimal() else 0


def measured_costs(
    config: DeploymentConfig, profiles: Profiles
) -> tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]:
    """(variant, p50, p99 by batch size) of what the configuration does not say itself."""
    known = known_profiles(config)
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
            _check_input(application, variant, given)
        table_ns: tuple[int, ...] = ()
        static_bytes = 0
        if variant.model == "emulated":
            static_bytes = profiles[variant.name].static_bytes
            table_ns = tuple(profiles[variant.name].table_ns(variant.batch_size_max))
        spec = ModelSpec(
            variant.name,
            variant.model,
            variant.batch_size_max,
            _input_shape(variant, given),
            given.dtype,
            table_ns,
            static_bytes,
            fit=given.fit if given.sized else "",
            picture=_image(application, given) if decodes_later(config, application) else None,
            finite_outputs=application.finite_outputs,
            inputs=named_inputs(application, signature),
            outputs=() if signature is None else signature.outputs,
        )
        specs.append(in_shape(spec, application, config.backend.swap))
    return specs


def input_of(application: Application, signature: Signature | None = None) -> InputSpec:
    """The first input of a request: as configured, or as the model that serves says of itself."""
    if signature is not None:
        first = signature.inputs[0]
        return InputSpec(first.name, first.datatype, first.shape)  # type: ignore[arg-type]
    card = describe(_serving(application).model)
    if application.input is not None or card is None:
        return application.input or InputSpec()
    return InputSpec(
        dtype=NAMES[np.dtype(card.input_dtype)],  # type: ignore[arg-type]
        shape=card.input_shape,
        image=bool(card.fit),
        fit=card.fit or "stretch",  # type: ignore[arg-type]
    )


def _serving(application: Application) -> Variant:
    """The variant that serves unless the policy chooses."""
    for variant in application.variants:
        if variant.name == application.serving:
            return variant
    return application.variants[0]


def _check_input(application: Application, variant: Variant, given: InputSpec) -> None:
    card = describe(variant.model)
    if card is not None and card.input_shape != given.shape:
        raise ConfigError(
            f"{variant.name} takes inputs of {list(card.input_shape)}, {application.name} gives it "
            f"{list(given.shape)}; give it an application of its own"
        )


def _input_shape(variant: Variant, given: InputSpec) -> tuple[int, ...]:
    if not given.sized:
        return given.shape
    if given.dtype != "UINT8" or not given.image or given.fit not in ("whole", "centre"):
        raise ConfigError(
            f"{variant.name}: input.sized needs image: true, dtype: UINT8 and fit: whole or centre"
        )
    side = side_of(variant)
    if not side:
        raise ConfigError(
            f"{variant.name}: input.sized needs the side of its pictures; give input_size, or name "
            "it as in imagenet:lite0@160"
        )
    return (3, side, side)


def registry(config: DeploymentConfig) -> Registry:
    """Models that frontends offer to clients."""
    names = router_names(config.applications)
    given = sorted(zip(config.applications, names, strict=True), key=lambda pair: pair[0].version)
    versions: dict[str, tuple[str, ...]] = {}
    for application, _ in given:
        versions[application.name] = (
            *versions.get(application.name, ()),
            str(application.version),
        )
    found: list[ServedModel] = []
    for application, name in given:
        policy = application.policy or config.router.policy
        rows = [rows_max(part, policy) for part in bucketed((application,))]
        model = replace(
            _served_model(application, name, versions[application.name]),
            decoded_later=decodes_later(config, application),
        )
        found.append(with_buckets(model, application, rows))
    return Registry.of(found)


def rows_max(application: Application, policy: str) -> int:
    """Rows of one request that the application's batches take, and end in half of its SLO."""
    if not POLICIES[resolved(application, policy, {})[0]].counts_rows:
        return 1
    serving = _serving(application)
    if serving.profile is None:
        return serving.batch_size_max
    table_ns = serving.profile.table_ns(serving.batch_size_max)
    return max(1, bisect_right(table_ns, application.slo_ns // 2))


def _signature(application: Application) -> Signature | None:
    """The signature of an application, which all of its variants have."""
    found = {each.name: signature_of(application, each.model) for each in application.variants}
    known = {name: each for name, each in found.items() if each is not None}
    if known:
        check_same(application, known)
    return found[_serving(application).name]


def _first(given: InputSpec) -> TensorSpec:
    return TensorSpec(given.name, given.dtype, given.shape)


def _served_model(
    application: Application, router_name: str, versions: tuple[str, ...]
) -> ServedModel:
    signature = _signature(application)
    given = input_of(application, signature)
    card = describe(_serving(application).model)
    outputs = () if signature is None else signature.outputs
    labels = application.labels
    if card is not None:
        outputs = (TensorSpec(OUTPUT, "FP32", card.output_shape),)
        labels = labels or card.labels
    return ServedModel(
        name=application.name,
        input=_first(given) if signature is None else signature.inputs[0],
        more_inputs=() if signature is None else signature.inputs[1:],
        slo_ns=application.slo_ns,
        hard_limit_ns=application.limit_ns,
        outputs=outputs,
        versions=versions,
        version=str(application.version),
        router_name=router_name,
        share=1.0 if application.canary is None else application.canary.share,
        image=_image(application, given),
        read=_reader(card),
        boxes=card is not None and card.boxes and given.fit == "whole",
        variants=tuple(variant.name for variant in application.variants),
        labels=labels,
        sides=(
            {variant.name: side_of(variant) for variant in application.variants}
            if given.sized
            else {}
        ),
    )


def _image(application: Application, given: InputSpec) -> ImageSpec | None:
    if not given.image:
        return None
    if len(given.shape) != 3 or -1 in given.shape:
        raise ConfigError(
            f"input.shape={list(given.shape)} of {application.name} must be channels, height, width"
        )
    return ImageSpec(given.shape[1], given.shape[2], given.mean, given.std, given.fit)


def decodes_later(config: DeploymentConfig, application: Application) -> bool:
    """Whether plain JPEGs of an application are decoded by its backends, on their GPU."""
    given, device = input_of(application), config.backend.device
    if given.decode == "gpu" and device not in ("cuda", "auto"):
        raise ConfigError(
            f"input.decode=gpu of {application.name} needs backend.device: cuda, not {device}"
        )
    # Frames of other sizes, and those that a SneakPeek model looks at, are needed decoded.
    looked_at = application.class_options is not None
    # A model that is loaded for its batch cannot say in time which pictures are broken.
    decoded = given.sized or looked_at or config.backend.swap
    if application.inputs or not given.image or decoded:
        return False
    return given.decode == "gpu" or (given.decode == "auto" and device == "cuda")


def _reader(card: Card | None) -> Reader | None:
    """From a sentence to token ids, where the model takes those."""
    if card is None or not card.text:
        return None
    tokens = Tokens(card.input_shape[0])

    def read(sentence: bytes) -> Array:
        ids: Array = tokens([sentence.decode()])[0]
        return ids

    return read
