"""Models as frontends offer them to clients."""

from bisect import bisect_right
from dataclasses import replace

from fermata.applications.application import Application
from fermata.applications.reader import bucketed, router_names
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.served.inputs import (
    decodes_later,
    first_input,
    image_of,
    input_of,
    serving_of,
    shared_signature,
    side_of,
)
from fermata.deployments.config.served.pipelines import served_pipelines
from fermata.deployments.config.served.sequences import has_sequences, with_sequences
from fermata.deployments.config.served.shapes import with_buckets
from fermata.deployments.config.served.signature import boxes_of, told_outputs
from fermata.deployments.models.catalog import describe
from fermata.deployments.models.minilm import Tokens
from fermata.deployments.models.model import Array, Card
from fermata.deployments.specs.registry import Registry
from fermata.deployments.specs.served_model import (
    OUTPUT,
    Reader,
    ServedModel,
    TensorSpec,
)
from fermata.router.policies.auto import resolved
from fermata.router.policies.catalog import POLICIES


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
        model = _served_model(application, name, versions[application.name])
        policy, rows = application.policy or config.router.policy, [1]
        if not has_sequences(application):
            rows = [rows_max(part, policy) for part in bucketed((application,))]
        later = decodes_later(config, application)
        found.append(with_buckets(replace(model, decoded_later=later), application, rows))
    return Registry.of([*found, *served_pipelines(config, found)])


def rows_max(application: Application, policy: str) -> int:
    """Rows of one request that the application's batches take, and end in half of its SLO."""
    if not POLICIES[resolved(application, policy, {})[0]].counts_rows:
        return 1
    serving = serving_of(application)
    if serving.profile is None:
        return serving.batch_size_max
    table_ns = serving.profile.table_ns(serving.batch_size_max)
    return max(1, bisect_right(table_ns, application.slo_ns // 2))


def _served_model(
    application: Application, router_name: str, versions: tuple[str, ...]
) -> ServedModel:
    signature = shared_signature(application)
    given = input_of(application, signature)
    card = describe(serving_of(application).model)
    outputs = () if signature is None else signature.outputs
    labels = application.labels
    if card is not None:
        outputs = card.outputs or (TensorSpec(OUTPUT, "FP32", card.output_shape),)
        labels = labels or card.labels
    elif signature is None and application.boxes is not None:
        outputs = told_outputs(application, serving_of(application).model)
    model = ServedModel(
        name=application.name,
        input=first_input(given) if signature is None else signature.inputs[0],
        more_inputs=() if signature is None else signature.inputs[1:],
        slo_ns=application.slo_ns,
        hard_limit_ns=application.limit_ns,
        outputs=outputs,
        versions=versions,
        version=str(application.version),
        router_name=router_name,
        share=1.0 if application.canary is None else application.canary.share,
        image=image_of(application, given),
        read=_reader(card),
        boxes=boxes_of(application, serving_of(application).model, outputs, given.image),
        variants=tuple(variant.name for variant in application.variants),
        labels=labels,
        sides=(
            {variant.name: side_of(variant) for variant in application.variants}
            if given.sized
            else {}
        ),
    )
    return with_sequences(application, model, signature)


def _reader(card: Card | None) -> Reader | None:
    """From a sentence to token ids, where the model takes those."""
    if card is None or not card.text:
        return None
    tokens = Tokens(card.input_shape[0])

    def read(sentence: bytes) -> Array:
        ids: Array = tokens([sentence.decode()])[0]
        return ids

    return read
