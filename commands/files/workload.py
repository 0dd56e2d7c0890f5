"""Scenarios for commands: of a scenario file, or of a serving file and a load."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from fermata.applications.application import Application
from fermata.applications.classes import PeekOptions
from fermata.applications.variant import EMULATED, measured_by
from fermata.commands.files.fan_outs import check_fan_outs, pipeline_rows, with_fan_outs
from fermata.commands.files.profile_option import apply_profiles
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import check_number, check_positive, refuse
from fermata.foundation.user_code import find_beside
from fermata.foundation.validation import Fields, fields, read_yaml
from fermata.simulator.scenario.scenario import (
    SCENARIO_KEYS,
    Scenario,
    build_scenario,
    declared,
)

if TYPE_CHECKING:
    from fermata.deployments.config.base import Section
    from fermata.deployments.config.deployment import DeploymentConfig
    from fermata.deployments.config.scaling import EpochsConfig

SHARED_KEYS = frozenset(("applications", "autoscaler", "epochs", "pipelines"))
"""Top-level sections that scenarios and serving files both have."""

WorkloadPath = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO",
        help="Scenario (docs/scenarios.md), or serving file (docs/configuration.md).",
    ),
]
RateRps = Annotated[
    float | None,
    typer.Option(help="Requests per second of all applications; the file's unless given."),
]
Backends = Annotated[int | None, typer.Option(help="Backends; the file's unless given.")]
DurationS = Annotated[float | None, typer.Option(help="Measured time; the file's, or 30 s.")]
Arrivals = Annotated[
    str,
    typer.Option(
        help="poisson, periodic, or a whole section such as '{process: gamma, shape: 0.5}'; "
        "the file's, or poisson."
    ),
]
FanOuts = Annotated[
    list[str] | None,
    typer.Option(
        "--fan-out",
        metavar="[PIPELINE.]STAGE=MEAN",
        help="Requests that one result makes at a stage of a pipeline: a number, or a section such "
        "as '{mean: 5}'; the file's unless given.",
    ),
]
Profiles = Annotated[
    list[str] | None,
    typer.Option(
        "--profile",
        metavar="[VARIANT=]FILE[#NAME]",
        help="Profiles of variants that have no run times, found by variant or model.",
    ),
]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """A load from the command line, in place of the file's."""

    rate_rps: float | None = None
    backends: int | None = None
    duration_s: float | None = None
    arrivals: str = ""
    profiles: tuple[str, ...] = ()
    fan_outs: tuple[str, ...] = ()

    def on(self, top: Fields) -> Fields:
        """The options of a file, with these in their place."""
        for name, given in (("--rate-rps", self.rate_rps), ("--duration-s", self.duration_s)):
            if given is not None:
                check_positive(name, given)
        if self.backends is not None:
            check_number("--backends", self.backends, low=1)
        changes = {
            "rate_rps": self.rate_rps,
            "duration_s": self.duration_s,
            "backends": self.backends,
            "arrivals": _arrivals(self.arrivals) if self.arrivals else None,
        }
        set_here = {key: value for key, value in changes.items() if value is not None}
        return replace(top, data={**top.data, **set_here})


def _arrivals(text: str) -> object:
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError:
        given = None
    if not isinstance(given, str | dict):
        refuse("--arrivals", text, "must be a process or a section; see docs/scenarios.md")
    return {"process": given} if isinstance(given, str) else given


def is_serving_file(data: object) -> bool:
    """Whether a file's content is a serving file rather than a scenario, by its keys."""
    if not isinstance(data, dict):
        return False
    keys = set(data)
    simulated = keys & (set(SCENARIO_KEYS) - SHARED_KEYS)
    served = keys & (serving_keys() - SHARED_KEYS)
    if "backends" in keys:
        # Both kinds of file may list groups; a number of them is a scenario's.
        if not isinstance(data["backends"], list) or served == {"backends"}:
            return False
        simulated, served = simulated - {"backends"}, served - {"backends"}
    return len(served) > len(simulated) or (not simulated and keys <= serving_keys())


def is_scenario(data: object) -> bool:
    """Whether a file's content is a scenario, and not a serving file with a mistake in it."""
    if not isinstance(data, dict) or is_serving_file(data):
        return False
    return bool(set(data) & (set(SCENARIO_KEYS) - SHARED_KEYS))


def serving_keys() -> frozenset[str]:
    """Top-level keys of a serving file."""
    try:
        from fermata.deployments.config.deployment import DeploymentConfig
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing; pip install 'fermata[serve]'") from None
    return frozenset(DeploymentConfig.model_fields)


def load_workload(path: Path, load: LoadOptions, needs_rate: bool = True) -> Scenario:
    """The scenario in a file, or that of a serving file under a load; else a ConfigError."""
    return workload_of(path, read_yaml(path), load, needs_rate)


def workload_of(path: Path, data: object, load: LoadOptions, needs_rate: bool = True) -> Scenario:
    """The same of a file's content."""
    find_beside(path)
    if is_serving_file(data):
        return _of_serving_file(path, data, load, needs_rate)
    top = load.on(fields("", "scenario", data, SCENARIO_KEYS, path.parent))
    if load.fan_outs:
        rows = with_fan_outs(top.data.get("pipelines"), load.fan_outs)
        top = replace(top, data={**top.data, "pipelines": rows})
    return build_scenario(top, _prepared(declared(top), load.profiles), needs_rate)


def _of_serving_file(path: Path, data: object, load: LoadOptions, needs_rate: bool) -> Scenario:
    from fermata.deployments.config.deployment import read_config
    from fermata.deployments.config.resolve import is_scaled, presets

    config = read_config(data, str(path), path.parent)
    applications = [
        replace(
            each,
            policy_options={**presets(each.policy, is_scaled(config)), **each.policy_options},
            # Frames supersede one another within a stream; without clients there is none.
            newest=each.newest and bool(each.clients),
        )
        for each in config.applications
    ]
    top = load.on(_fleet(config, path.parent))
    try:
        top = _with_pipelines(top, data, config, load)
        prepared = _prepared(tuple(applications), load.profiles)
        found = build_scenario(top, _swapped_in(config, prepared), False)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if needs_rate and found.rate_rps is None and not found.knows_rate():
        rule = "is a serving file, which names no load; give --rate-rps, requests per second"
        raise ConfigError(f"{path}: {rule}")
    return found


def _with_pipelines(
    top: Fields, data: object, config: "DeploymentConfig", load: LoadOptions
) -> Fields:
    """The options with the pipelines of a serving file, if it has any, or those that are given."""
    if not config.pipelines and not load.fan_outs:
        return top
    rows = with_fan_outs(pipeline_rows(config), load.fan_outs)
    check_fan_outs(config, rows)
    # Its applications say which of the stages have requests of their own.
    assert isinstance(data, dict)
    given = data["applications"]
    return replace(top, data={**top.data, "pipelines": rows, "applications": given})


def _swapped_in(
    config: "DeploymentConfig", applications: tuple[Application, ...]
) -> tuple[Application, ...]:
    """Applications whose variants are brought in as a server brings them in."""
    from fermata.deployments.config.resolve import swap_in_of

    fixed, swap = config.repository == "fixed", config.backend.swap
    return tuple(
        replace(
            application,
            variants=tuple(
                replace(variant, swap_in_ns=swap_in_of(variant, profile, fixed, swap))
                for variant, profile in zip(application.variants, application.profiles, strict=True)
            ),
        )
        for application in applications
    )


def _fleet(config: "DeploymentConfig", beside: Path) -> Fields:
    """The options of a scenario that a serving file says."""
    from fermata.deployments.config.resolve import is_scaled, presets

    router, autoscaler, epochs = config.router, config.autoscaler, config.epochs
    preset = presets(router.policy, is_scaled(config))
    told = {
        "backends": _groups(config) or config.backend.count,
        "policy": router.policy,
        "policy_options": {**preset, **router.policy_options},
        "fair_shares": router.fair_shares,
        "swap": config.backend.swap,
    }
    sections: dict[str, Section | None] = {
        "autoscaler": autoscaler,
        "epochs": None if epochs is None else _limited(epochs, config.backend.memory_mb),
    }
    scaled = {
        key: section.model_dump(exclude_none=True)
        for key, section in sections.items()
        if section is not None
    }
    return Fields("", {**told, **scaled}, beside)


def _groups(config: "DeploymentConfig") -> list[Any]:
    """The groups of backends as a scenario writes them."""
    from fermata.deployments.config.backend_groups import groups_of

    if not config.backends:
        return []
    keys = ("count", "kind", "slower")
    return [each.backend.model_dump(include=set(keys)) for each in groups_of(config)]


def _limited(epochs: "EpochsConfig", memory_mb: float | None) -> "EpochsConfig":
    """The section with the memory of a backend, where that is the smaller limit."""
    limits = [each for each in (epochs.memory_mb, memory_mb) if each is not None]
    return epochs.model_copy(update={"memory_mb": min(limits, default=None)})


def _prepared(
    applications: tuple[Application, ...], profiles: tuple[str, ...]
) -> tuple[Application, ...]:
    """Applications with the profiles of the command line, and with SneakPeek models read."""
    found = apply_profiles(applications, profiles)
    variants = [variant for each in found for variant in each.variants]
    lacking = [each for each in variants if each.profile is None and each.model != EMULATED]
    if lacking:
        names = ", ".join(each.name for each in lacking)
        raise ConfigError(f"no run times of {names}; {measured_by(lacking)}, or --profile FILE")
    return tuple(_with_peek(each) for each in found)


def _with_peek(application: Application) -> Application:
    """A SneakPeek model of a file votes in simulations as its confusion matrix says."""
    given = application.class_options
    if given is None or not given.sneakpeek or not isinstance(given.sneakpeek, str):
        return application
    try:
        from fermata.deployments.config.served.looks import peek_of
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing; pip install 'fermata[serve]'") from None
    model = peek_of(application)
    assert model is not None
    peek = PeekOptions(confusion=model.peek.confusion, votes=model.index.k)
    return replace(application, class_options=replace(given, sneakpeek=peek))
