"""Inputs of an application that frontends fill in for the sequences of its clients."""

from dataclasses import replace

from fermata.applications.application import Application
from fermata.deployments.specs.served_model import (
    CONTROLS,
    SequenceSpec,
    ServedModel,
    Signature,
    TensorSpec,
)
from fermata.foundation.errors import ConfigError
from fermata.router.policies.sequences import IDLE_NS


def has_sequences(application: Application) -> bool:
    """Whether requests of an application are steps of sequences."""
    return application.sequences or bool(application.state)


def control_inputs(application: Application, signature: Signature | None) -> tuple[TensorSpec, ...]:
    """Inputs by which a model that keeps state is told of sequences: those that its own signature
    has, or all where it is a function."""
    if not application.sequences:
        return ()
    own = {} if signature is None else {each.name: each for each in signature.inputs}
    declared = tuple(own[each.name] for each in CONTROLS if each.name in own)
    return declared or CONTROLS


def with_sequences(
    application: Application, model: ServedModel, signature: Signature | None
) -> ServedModel:
    """The model as clients see it: without the inputs and outputs that are filled in for them."""
    if not has_sequences(application):
        return model
    controls = control_inputs(application, signature)
    state = _state_inputs(application, model)
    hidden = {each.name for each in (*controls, *(spec for spec, _ in state))}
    spec = SequenceSpec(application.sequence_idle_ns or IDLE_NS, controls, state)
    inputs = [each for each in model.inputs if each.name not in hidden]
    if not inputs:
        raise ConfigError(
            f"{application.name} has no input but its state; give it one that clients send"
        )
    outputs = tuple(each for each in model.outputs if each.name not in spec.hidden_outputs)
    return replace(
        model,
        input=inputs[0],
        more_inputs=tuple(inputs[1:]),
        outputs=outputs,
        stateful=spec,
        rows_max=1,
    )


def _state_inputs(
    application: Application, model: ServedModel
) -> tuple[tuple[TensorSpec, str], ...]:
    given = {each.name: each for each in model.inputs}
    outputs = {each.name for each in model.outputs}
    found: list[tuple[TensorSpec, str]] = []
    for name, output in application.state.items():
        where = f"state.{name} of {application.name}"
        if name not in given:
            raise ConfigError(f"{where}: the model takes {', '.join(given)}; name one of these")
        if outputs and output not in outputs:
            raise ConfigError(
                f"{where}: the model has no output {output!r}; name one of "
                f"{', '.join(sorted(outputs))}"
            )
        if any(size < 0 for size in given[name].shape) or given[name].datatype == "BYTES":
            raise ConfigError(
                f"{where}: {given[name]} has no fixed size, and starts with zeros; give its size "
                "under inputs"
            )
        found.append((given[name], output))
    return tuple(found)
