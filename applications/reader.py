"""Reads the `applications` of a file, serving file or scenario alike."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fermata.applications.application import Application
from fermata.applications.shapes import check_shapes, in_bucket, variant_in
from fermata.applications.variant import Variant, read_variant
from fermata.foundation.refusals import refuse
from fermata.foundation.sections import keys, read_section
from fermata.foundation.validation import Fields
from fermata.router.policies.auto import resolved
from fermata.router.policies.catalog import POLICIES, read_options


def read_applications(top: Fields) -> tuple[Application, ...]:
    """Every application under `applications`, each value of it checked."""
    rows = top.rows("applications", keys(Application))
    if not rows:
        refuse(top.name("applications"), [], "must hold at least one application")
    return tuple(_read_application(row) for row in rows)


def _read_application(row: Fields) -> Application:
    variants = tuple(read_variant(each) for each in row.rows("variants", keys(Variant)))
    found = read_section(Application, row, variants=variants)
    if not variants:
        refuse(row.name("variants"), [], "must hold at least one variant")
    if found.hard_limit_ns and found.hard_limit_ns < found.slo_ns:
        rule = f"must be at least slo_ms, {found.slo_ns / 1e6:g}"
        refuse(row.name("hard_limit_ms"), found.hard_limit_ns / 1e6, rule)
    _check_tensors(row, found)
    if found.shapes is not None:
        check_shapes(row.name("shapes"), found.shapes)
        _check_bucketed(row, found)
    names = [variant.name for variant in variants]
    for index, group in enumerate(found.clients):
        if group.pinned and group.pinned not in names:
            refuse(row.name(f"clients[{index}].pinned"), group.pinned, "is not among the variants")
    if found.serving and found.serving not in names:
        refuse(row.name("serving"), found.serving, f"must be one of {', '.join(names)}")
    _check_policy(row, found)
    return found


def _check_tensors(row: Fields, application: Application) -> None:
    """Refuse a signature that no request could have."""
    if application.input is not None and application.inputs:
        refuse(row.name("inputs"), len(application.inputs), "goes without input; leave one out")
    if application.input is not None:
        _check_shape(row.name("input.shape"), application.input.shape)
    for side in ("inputs", "outputs"):
        tensors = application.inputs if side == "inputs" else application.outputs
        counts = Counter(each.name for each in tensors)
        for index, each in enumerate(tensors):
            where = row.name(f"{side}[{index}]")
            if counts[each.name] > 1:
                refuse(f"{where}.name", each.name, "is there twice; give each tensor its own name")
            _check_shape(f"{where}.shape", each.shape)
    _check_state(row, application)
    if application.inputs and all(each.optional for each in application.inputs):
        refuse(row.name("inputs"), len(application.inputs), "must hold one that is not optional")


def _check_bucketed(row: Fields, application: Application) -> None:
    """Refuse what spans requests of all sizes: each bucket would know only its own."""
    for key, given in (
        ("sequences", application.sequences),
        ("state", application.state),
        ("classes", application.class_options),
    ):
        if given:
            refuse(row.name(key), application.name, "goes without shapes; leave one out")


def _check_state(row: Fields, application: Application) -> None:
    """Refuse a state that no request could have."""
    state, where = application.state, row.name("state")
    if state and application.sequences:
        refuse(where, dict(state), "is carried by frontends; leave it or sequences out")
    if state and application.newest:
        refuse(row.name("newest"), True, "would drop parts of sequences; leave it or state out")
    for name, output in state.items():
        if not isinstance(output, str):
            refuse(f"{where}.{name}", output, "must name the output with the next state")


def _check_shape(where: str, shape: tuple[int, ...]) -> None:
    if 0 in shape:
        refuse(where, list(shape), "must hold sizes of 1 or more, or -1 where a size varies")


def _check_policy(row: Fields, application: Application) -> None:
    if application.policy:
        row.choice("policy", POLICIES)
        read_options(application.policy, application.policy_options)
    elif application.policy_options:
        given = application.policy_options
        refuse(row.name("policy_options"), given, "needs policy beside it")


def owners_of(
    applications: Sequence[Application], policy: str, options: Mapping[str, object]
) -> list[tuple[str, str, Mapping[str, object]]]:
    """(application, its policy, that one's options), where the file's own serve those without."""
    return [
        (name, *resolved(each, each.policy, each.policy_options))
        if each.policy or each.sequences
        else (name, policy, options)
        for each, name in zip(applications, router_names(applications), strict=True)
    ]


def numbered(applications: tuple[Application, ...]) -> tuple[Application, ...]:
    """Each application as often as `copies` says, the copies with a number in their names."""
    found: list[Application] = []
    for application in applications:
        for copy in range(application.copies):
            name = application.name if application.copies == 1 else f"{application.name}-{copy}"
            found.append(replace(application, name=name, copies=1))
    return tuple(found)


def bucketed(applications: Sequence[Application]) -> tuple[Application, ...]:
    """The applications as a router serves them: each shape bucket is one of its own."""
    return tuple(part for each in applications for part in _in_buckets(each))


def _in_buckets(application: Application) -> tuple[Application, ...]:
    shapes = application.shapes
    if shapes is None or application.bucket:
        return (application,)
    count = len(shapes.buckets)
    return tuple(
        replace(
            application,
            bucket=bucket,
            variants=tuple(variant_in(each, shapes, bucket) for each in application.variants),
            serving=in_bucket(application.serving, bucket) if application.serving else "",
            # Together they have the share of one application.
            backend_share=application.backend_share / count,
            fair_share=application.fair_share / count,
        )
        for bucket in shapes.buckets
    )


def router_names(applications: Sequence[Application]) -> list[str]:
    """The router's name of each application: versions and buckets are applications there."""
    given = Counter((each.name, each.bucket) for each in applications)
    return [_in_router(each, given[each.name, each.bucket] > 1) for each in applications]


def _in_router(application: Application, versioned: bool) -> str:
    name = application.name
    if versioned:
        name = f"{name}@{application.version}"
    return in_bucket(name, application.bucket) if application.bucket else name
