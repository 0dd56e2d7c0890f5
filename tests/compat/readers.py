"""The meaning of users' files, in plain values: the one place here that imports Fermata.

Commands are run as a user would; files that no command shows go through the functions that load
them. A rename in the code is followed here alone: in the imports, and for attributes in `_pick`,
as `recorded=renamed`. What is recorded keeps its names.
"""

import asyncio
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from snapshots import application, router, sub_cluster
from typer.testing import CliRunner

from fermata.commands.main import app
from fermata.commands.view import Record
from fermata.deployments.config.deployment import DeploymentConfig, load_config
from fermata.deployments.config.processes.frontend_options import frontend_options
from fermata.deployments.config.resolve import known_profiles, model_specs, router_config, variants
from fermata.deployments.config.served.registry import registry
from fermata.deployments.control.scaling import ScalingLoop
from fermata.deployments.sneakpeek.store import load_model, read_data
from fermata.partitioner.plan import Plan
from fermata.partitioner.plan_file import by_name, load_plan
from fermata.profiles.profile import Profile, linear
from fermata.profiles.store import load_file, load_table, tables
from fermata.router.assembly import assemble
from fermata.router.policies.auto import resolved
from fermata.router.policies.catalog import POLICIES, read_options
from fermata.router.policies.rl.checkpoint import load_checkpoint
from fermata.router.telemetry.snapshot import PlacementSnapshot, RouterSnapshot
from fermata.simulator.scenario.scenario import load_scenario

FILES = Path(__file__).parent / "files"
LABELLED = Path("beside/labelled.npz")
COMMANDS = Path("commands.yaml")
TOKEN = ("COMPAT_TOKEN", "compat-token-of-the-environment")
SHORTER_S = {
    "autoscale": 13,
    "bursts": 120,
    "cameras": 6,
    "resnet50": 3,
    "sneakpeek": 11,
    "zoo": 1.5,
}
"""Shipped samples that would take seconds are simulated for this long."""
SIZES = (1, 2, 3, 5, 8, 13, 64)
PASSING = {"wall_s", "requests_per_wall_s", "seconds", "us_a_request", "file", "bound", "gap"}
"""What a command prints of its own effort."""
RULE = (
    "minimum maximum to_zero zero_after bad_rate_max idle idle_max idle_taught forget "
    "release_band release_after cool_down lead rising"
)
Meaning = dict[str, Any]


def names(kind: str) -> list[str]:
    """Everything that is kept of a kind."""
    if kind == "commands":
        return list(yaml.safe_load((FILES / COMMANDS).read_text(encoding="utf-8")))
    return sorted(path.name for path in (FILES / kind).iterdir())


def read(kind: str, name: str) -> Any:
    """The meaning of one of them, as JSON would hold it."""
    with _among_files():
        return _plain(READERS[kind](name if kind == "commands" else f"{kind}/{name}"))


@contextmanager
def _among_files() -> Iterator[None]:
    """Paths and modules that files name are found, and so is a token of the environment."""
    path, environment = list(sys.path), dict(os.environ)
    sys.path.append(str(FILES / "beside"))
    os.environ.update([TOKEN])
    try:
        with chdir(FILES):
            yield
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _pick(value: Any, attributes: str) -> Meaning:
    words = [word.partition("=") for word in attributes.split()]
    return {name: getattr(value, renamed or name) for name, _, renamed in words}


def _fermata(*arguments: str) -> Any:
    """What a command prints as JSON, less what differs from run to run; its errors are raised."""
    found = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return _lasting(json.loads(found.stdout)) if "--json" in arguments else None


def _lasting(value: Any) -> Any:
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    if isinstance(value, dict):
        return {key: _lasting(each) for key, each in value.items() if key not in PASSING}
    return value


def _command(name: str) -> Meaning:
    line = yaml.safe_load(COMMANDS.read_text(encoding="utf-8"))[name]
    with tempfile.TemporaryDirectory() as folder:
        meaning = {"printed": _fermata(*shlex.split(line.format(out=f"{folder}/out")))}
        for path in Path(folder).iterdir():
            meaning["written"] = _written(path)
    return meaning


def _written(path: Path) -> Any:
    if path.suffix == ".npz":
        return _sneakpeek(str(path))
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _serves(file: Any) -> tuple[str, Mapping[str, object]]:
    """What serves applications that name no policy, and its options: `auto` by what it stands for
    where they agree."""
    unnamed = [each for each in file.applications if not each.policy]
    found = [resolved(each, file.policy, file.policy_options) for each in unnamed]
    alike = found and all(each == found[0] for each in found)
    return found[0] if alike else (file.policy, file.policy_options)


def _options(policy: str, given: Mapping[str, object]) -> Meaning:
    """Every option that a user may set, by the name and in the unit of files."""
    options, fixed = read_options(policy, given), POLICIES[policy].fixed
    found = {each.name: getattr(options, each.name) for each in fields(options)}
    return {
        name.replace("_ns", "_ms"): value / 1e6 if "_ns" in name else value
        for name, value in found.items()
        if name not in fixed
    }


def _profile(profile: Profile) -> Meaning:
    end = profile.batch_size_max or max(SIZES)
    sizes = [each for each in SIZES if each <= end]
    return {
        **_pick(profile, "name batch_size_max static_bytes file_bytes load_ns swap_in_ns"),
        **_pick(profile, "accuracy recall confusion input input_size device slo_ns"),
        "p50_ns": {size: profile.latency_ns(size) for size in sizes},
        "p99_ns": {size: profile.latency_ns_p99(size) for size in sizes},
        "dynamic_bytes": {size: profile.dynamic_bytes_at(size) for size in sizes},
    }


def _profiles(path: str) -> Meaning:
    table = load_file(path)
    meaning = {**_pick(table, "name device source"), "profiles": _by_name(table.profiles)}
    if table.name in tables():
        # Users name these as TABLE/NAME and have no file.
        meaning["shipped"] = _by_name(load_table(table.name).profiles) == meaning["profiles"]
    return meaning


def _by_name(profiles: Sequence[Profile]) -> Meaning:
    return {profile.name: _profile(profile) for profile in profiles}


def _plan(path: str) -> Any:
    written = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if "plan" in written:
        names = [str(each) for each in written["plan"]]
        placed = by_name(load_plan(path, names), names)
        return {model: home for home, models in placed.items() for model in models}
    return _fermata("plan", path, "--json")


def _checkpoint(path: str) -> Meaning:
    loaded = load_checkpoint(path)
    decisions = []
    for share in (0.0, 0.3, 0.7, 1.0, 1.5):
        seen = loaded.low + share * (loaded.high - loaded.low)
        decided = loaded.decide(seen)
        trusted = loaded.trusts(seen)
        decisions.append({"trusted": trusted, "shares": decided.shares, "limits": decided.limits})
    return {
        **_pick(loaded, "tiers slot_ns batching even training"),
        **_pick(loaded.scales, "buffer slo_ns arrivals memory"),
        "decisions": decisions,
    }


def _sneakpeek(path: str) -> Meaning:
    model = load_model(Path(path), LABELLED)
    samples, _ = read_data(LABELLED)
    return {
        **_pick(model, "data input_shape accuracy"),
        **_pick(model.index, "classes k kind"),
        **_pick(model.peek, "confusion recall sharpness hidden"),
        "votes": model.index.votes(samples[:12]),
    }


def _trace(path: str) -> Meaning:
    if Path(path).is_dir():
        with tempfile.TemporaryDirectory() as folder:
            _fermata("trace", path, "--out", f"{folder}/trace.json")
            return {"spans": _written(Path(folder, "trace.json"))}
    record = Record(Path(path))
    frames = [json.loads(record.frame(index)) for index in (0, len(record.frames))]
    return {"frames": len(record.frames), "first": frames[0], "last": frames[1]}


def _scenario(path: str) -> Meaning:
    scenario = load_scenario(path)
    policy, options = _serves(scenario)
    network, autoscaler, epochs = scenario.network, scenario.autoscaler, scenario.epochs
    read: Meaning = {
        **_pick(scenario, "backends rate_rps seed duration_ns warmup_ns jitter variation"),
        "policy": policy,
        **_pick(scenario, "draw dispatch_ns shares swap fair_shares"),
        "policy_options": _options(policy, options),
        "arrivals": _pick(scenario.arrivals, "process shape d0 d1 rps step_ns rps_of phase"),
        "faults": [_pick(each, "at_ns backend kind factor for_ns") for each in scenario.faults],
        "applications": [_simulated(each) for each in scenario.applications],
    }
    if network is not None:
        read["network"] = _pick(network, "frame_bits round_trip_ns adaptation")
        read["traces"] = {key: _pick(each, "bps step_ns") for key, each in network.traces.items()}
    if autoscaler is not None:
        read["rule"] = _pick(autoscaler.rule, RULE)
        read["autoscaler"] = _pick(autoscaler, "window_ns startup_ns dry_run price_per_hour")
    if epochs is not None:
        read["epochs"] = _pick(epochs, "every_ns sub_clusters memory_bytes rate_rps_max")
        read["epochs"] |= _pick(epochs, "load_cost_max memory_weight solve_s")
    with tempfile.TemporaryDirectory() as folder:
        return {"read": read, "report": _fermata("simulate", _short(path, folder), "--json")}


def _short(path: str, folder: str) -> str:
    """The same scenario, or a copy that is over sooner."""
    duration_s = SHORTER_S.get(Path(path).stem)
    if duration_s is None:
        return path
    scenario = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    copy = Path(folder, Path(path).name)
    copy.write_text(yaml.safe_dump({**scenario, "duration_s": duration_s}), encoding="utf-8")
    return str(copy)


def _simulated(application: Any) -> Meaning:
    classes, content = application.classes, application.content
    clients = "count slo_ns fps weight priority trace accuracy_floor pinned"
    found = {
        **_pick(application, "name slo_ns hard_limit_ns weight newest serving policy"),
        **_pick(application, "backend_share fair_share accuracy_floor"),
        "clients": [_pick(each, clients) for each in application.clients],
        "variants": [_profile(each) for each in application.profiles],
    }
    if application.policy:
        found["policy_options"] = _options(application.policy, application.policy_options)
    if classes is not None:
        found["classes"] = _classes(classes)
        found["content"] = _pick(content, "frequencies votes delay_ns")
        if content.samples is not None:
            found["samples"] = _pick(content.samples, "labels votes right")
    return found


def _classes(classes: Any) -> Meaning:
    peek = classes.peek
    return {
        **_pick(classes, "recall counts weights recall_floors prior"),
        "peek": None if peek is None else _pick(peek, "confusion recall sharpness hidden"),
    }


def _deployment(path: str) -> Meaning:
    config = load_config(path)
    names = [variant.name for _, variant in variants(config)]
    # In place of those that a backend would measure.
    profiles = {name: linear(name, 1, 4, accuracy=0.5, recall=(0.5,) * 10) for name in names}
    profiles |= known_profiles(config)
    meaning: Meaning = {
        "configuration": config.model_dump(mode="json"),
        "router": _router(router_config(config, profiles)),
        "offered": [_offered(*each) for each in registry(config).every()],
        "loaded": [_loaded(each) for each in model_specs(config, profiles)],
    }
    if config.frontend.tls is None and config.links.tls is None:
        meaning["frontend"] = _frontend(config)
    if config.autoscaler is not None:
        meaning["rule"] = _pick(config.autoscaler.options().rule, RULE)
    if config.epochs is not None and config.epochs.plan_file:
        meaning["kept_plan"] = asyncio.run(_kept_plan(config, profiles))
    return meaning


def _loaded(spec: Any) -> Meaning:
    told = _pick(spec, "name model batch_size_max input_shape input_dtype")
    told["half"] = spec.precision == "auto"
    told["fit"] = "" if spec.frames is None else spec.frames.fit
    return {**told, "run_ns": _at_sizes(spec.table_ns)}


def _at_sizes(table: Sequence[int]) -> dict[int, int]:
    return {size: table[size - 1] for size in SIZES if size <= len(table)}


def _router(config: Any) -> Meaning:
    policy, options = _serves(config)
    return {
        **_pick(config, "swap sub_clusters fair_shares"),
        "policy": policy,
        "policy_options": _options(policy, options),
        "applications": [_served(each) for each in config.applications],
        "variants": assemble(config).variants,
    }


def _served(application: Any) -> Meaning:
    found = _pick(application, "name slo_ns newest serving policy share=backend_share")
    found |= _pick(application, "fair_share accuracy_floor")
    found["variants"] = [
        {
            **_pick(variant, "name swap_in_ns accuracy input_size"),
            "p50_ns": _at_sizes(variant.p50_ns),
            "p99_ns": None if variant.p99_ns is None else _at_sizes(variant.p99_ns),
            "batch_size_max": len(variant.p50_ns),
        }
        for variant in application.variants
    ]
    if application.policy:
        found["policy_options"] = _options(application.policy, application.policy_options)
    if application.classes is not None:
        found["classes"] = _classes(application.classes)
    return found


def _offered(model: Any, version: str) -> Meaning:
    labels, image = model.labels, "height width mean std fit resize bicubic channels_last"
    return {
        **_pick(model, "name slo_ns hard_limit_ns versions share sides variants takes_bytes"),
        "boxes": model.boxes is not None,
        "version": version,
        "served_as": model.application(version),
        "input": _pick(model.input, "name datatype shape"),
        "outputs": [_pick(each, "name datatype shape") for each in model.outputs],
        "image": None if model.image is None else _pick(model.image, image),
        "labels": {"count": len(labels), "first": labels[:2], "last": labels[-2:]},
    }


def _frontend(config: DeploymentConfig) -> Meaning:
    told, tenant = frontend_options(config, 3), "name tokens applications rate_rps burst operator"
    limits = told.server.connections
    return {
        **_pick(told, "link_host repository_open to_zero pixels_max"),
        **_pick(told.server, "host grpc_port http_port reuse_port message_bytes_max"),
        "table": _pick(told.table, "payload_bytes_max reply_ns"),
        "streams": _pick(told.streams, "per_client_max idle_ns_max"),
        "connections": _pick(limits, "total_max per_address_max idle_ns receive_ns"),
        "traces": None if told.traces is None else _pick(told.traces, "folder share bytes_max"),
        "tenants": [_pick(each, tenant) for each in told.tenants],
    }


class _Cluster:
    """As much of a router and its cluster as a control plane asks at its start."""

    term = 1

    def __init__(self, applications: Sequence[str]) -> None:
        self.home = dict.fromkeys(applications, 0)

    async def snapshot(self) -> RouterSnapshot:
        placement = PlacementSnapshot(self.home, {}, [])
        counts = {name: application() for name in self.home}
        return router(counts, placement=placement, ranks=[sub_cluster(), sub_cluster()])

    async def place(self, plan: Plan) -> list[str]:
        self.home = dict(plan.home)
        return []

    async def backends_there(self) -> int:
        return 1

    async def device_bytes(self) -> int:
        return 0


async def _kept_plan(config: DeploymentConfig, profiles: Mapping[str, Profile]) -> dict[str, int]:
    """Where a control plane that starts anew has applications served."""
    assert config.epochs is not None
    cluster = _Cluster([each.name for each in config.applications])
    with tempfile.TemporaryDirectory() as folder:
        # The control plane keeps its plan anew; the file here stays as it is.
        copy = shutil.copy(config.epochs.plan_file, folder)
        epochs = config.epochs.model_copy(update={"plan_file": copy})
        copied = config.model_copy(update={"epochs": epochs})
        loop = ScalingLoop(copied, profiles, cluster, cluster)  # type: ignore[arg-type]
        await loop.start()
        loop.stop()
    return cluster.home


READERS: dict[str, Callable[[str], Any]] = {
    "checkpoints": _checkpoint,
    "commands": _command,
    "deployments": _deployment,
    "plans": _plan,
    "profiles": _profiles,
    "scenarios": _scenario,
    "sneakpeek": _sneakpeek,
    "traces": _trace,
}
