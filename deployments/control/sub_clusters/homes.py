"""Homes of applications at the start, and the directory that tells them. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from fermata.applications.reader import owners_of, router_names
from fermata.autoscaler.placer import room_within
from fermata.autoscaler.router_count import routers_needed
from fermata.deployments.config.backend_groups import are_apart, groups_of, own_config
from fermata.deployments.config.deployment import DeploymentConfig
from fermata.deployments.config.sub_clusters import most_open
from fermata.deployments.config.units import described, spread_over, unit_names, units_of
from fermata.deployments.control.scaling import placed_models
from fermata.deployments.control.sub_clusters.kinds import (
    able_on,
    in_time_by,
    kind_of,
    on_kinds,
    shares_of,
)
from fermata.deployments.control.sub_clusters.units import (
    check_room,
    in_units,
    stages_by_pipeline,
)
from fermata.foundation.errors import ConfigError
from fermata.partitioner.plan import (
    ANY_KIND,
    PlacedModel,
    Plan,
    Problem,
    SubCluster,
    fits,
    in_clusters,
    memory_bytes,
)
from fermata.profiles.profile import Profile
from fermata.profiles.store import BYTES_PER_MB
from fermata.router.links.directory import (
    Directory,
    Home,
    Shares,
    is_worth_telling,
    next_version,
    shifted,
    with_pipelines,
)
from fermata.router.policies.catalog import POLICIES

Homes = Mapping[str, tuple[int, ...]]
"""Sub-clusters of each application, by the router's name of it."""
RATE_RPS_MAX = 1e9
"""Limit of one router. Before any rate is measured, applications count alike: it limits nothing."""


def starting_problem(
    config: DeploymentConfig,
    profiles: Mapping[str, Profile],
    opened: int | None = None,
    by_group: Sequence[Mapping[str, Profile]] = (),
    rooms: Sequence[int] = (),
) -> Problem:
    """The question of which applications live together, in the first so many sub-clusters; in all
    unless given. Versions of one do: each is compared with the one before it. So do applications
    of one unit. Those that live everywhere are no part of it, but for their memory. `by_group` has
    the run times on each group of backends, where these are sub-clusters; `rooms` those for models
    on devices, as told."""
    whole = _all_models(config, profiles, by_group)
    spread = {name: whole.pop(name) for name in spread_over(config)}
    able = able_on(config, by_group)
    shares = shares_of(config) if by_group else (1.0,) * config.sub_clusters.routers
    places = [
        SubCluster(
            str(number),
            RATE_RPS_MAX,
            max(1, room_of(config, number, rooms) - _settled(able[number], spread)),
            shares[number],
            kind_of(config, number) if by_group else ANY_KIND,
        )
        for number in range(opened or config.sub_clusters.routers)
    ]
    models = in_units(config, whole)
    check_room(config, models, places)
    return Problem(models, in_clusters(places), by_backends=bool(by_group))


def _all_models(
    config: DeploymentConfig,
    profiles: Mapping[str, Profile],
    by_group: Sequence[Mapping[str, Profile]],
) -> dict[str, PlacedModel]:
    if not by_group:
        return _whole_models(config, profiles)
    own = enumerate(by_group)
    return on_kinds(config, [_whole_models(own_config(config, at), each, True) for at, each in own])


def _whole_models(
    config: DeploymentConfig, profiles: Mapping[str, Profile], timed: bool = False
) -> dict[str, PlacedModel]:
    """Applications by name, with all their versions and buckets; and with the run times of the
    slowest of these by its SLO, where they are asked for: a group has to serve all of them."""
    models = placed_models(config, profiles)
    if timed:
        router = config.router
        owners = owners_of(config.served, router.policy, router.policy_options)
        models = tuple(
            in_time_by(each, model, profiles, policy)
            for each, model, (_, policy, _) in zip(config.served, models, owners, strict=True)
        )
    found: dict[str, dict[int, list[PlacedModel]]] = {}
    for application, model in zip(config.served, models, strict=True):
        versions = found.setdefault(application.name, {})
        versions.setdefault(application.version, []).append(model)
    whole = {name: _together(name, versions.values()) for name, versions in found.items()}
    if not timed:
        return whole
    slowest = {
        name: max((each for buckets in versions.values() for each in buckets), key=_lateness)
        for name, versions in found.items()
    }
    return {
        name: replace(each, profiles=slowest[name].profiles, slo_ns=slowest[name].slo_ns)
        for name, each in whole.items()
    }


def _lateness(model: PlacedModel) -> float:
    """Run time of one request over the SLO."""
    return model.profiles[ANY_KIND].latency_ns(1) / model.slo_ns


def room_of(config: DeploymentConfig, number: int, rooms: Sequence[int] = ()) -> int:
    """Memory of a backend in a sub-cluster: by the file, or by its device where that has less.
    Unless it is a group, it has backends of all groups, and each holds all that lives there."""
    limits = [each.backend.memory_mb for each in groups_of(own_config(config, number))]
    limits.append(None if config.epochs is None else config.epochs.memory_mb)
    limits_mb = [each for each in limits if each is not None]
    limit = int(min(limits_mb) * BYTES_PER_MB) if limits_mb else None
    return room_within(limit, rooms[number] if rooms else 0)


def settled_bytes(
    config: DeploymentConfig,
    profiles: Mapping[str, Profile],
    by_group: Sequence[Mapping[str, Profile]] = (),
) -> tuple[int, ...]:
    """By sub-cluster: memory of what lives everywhere, on each of its backends."""
    whole = _all_models(config, profiles, by_group)
    spread = {name: whole[name] for name in spread_over(config)}
    return tuple(_settled(able, spread) for able in able_on(config, by_group))


def _settled(able: Collection[str], spread: Mapping[str, PlacedModel]) -> int:
    return memory_bytes([each for name, each in spread.items() if name in able])


def _everywhere(
    config: DeploymentConfig, able: Sequence[frozenset[str]]
) -> dict[str, tuple[int, ...]]:
    """Homes of each application of `spread`: all sub-clusters that can serve its whole unit."""
    spread, found = spread_over(config), dict[str, tuple[int, ...]]()
    for unit, names in units_of(config).items():
        homes = tuple(at for at, each in enumerate(able) if each >= set(names))
        if names[0] in spread and not homes:
            told = described(config, unit)
            raise ConfigError(f"no group of backends holds the SLO of all {told}, which are spread")
        found |= dict.fromkeys(names if names[0] in spread else (), homes)
    return found


def opened_at_start(
    config: DeploymentConfig, profiles: Mapping[str, Profile], start_rps: float | None = None
) -> int:
    """Sub-clusters that serve at first with `count: auto`: for the rates that the file gives of
    clients, and the memory of models. Nobody's rate is known otherwise. `start_rps` is what one
    router carries, where that was tried."""
    assert config.epochs is not None
    declared = dict.fromkeys((each.name for each in config.applications), 0.0)
    for each in config.applications:
        declared[each.name] += each.declared_rps
    problem, units = starting_problem(config, profiles, 1), units_of(config)
    models = [
        replace(each, rate_rps=sum(declared[name] for name in units[each.name]))
        for each in problem.models
    ]
    limit_rps = min(config.epochs.rate_max_rps, start_rps or config.epochs.rate_max_rps)
    place = replace(problem.sub_clusters[0], rate_rps_max=limit_rps)
    everywhere_rps = sum(declared[name] for name in spread_over(config))
    return routers_needed(models, place, everywhere_rps, most_open(config))


def _together(name: str, versions: Iterable[Sequence[PlacedModel]]) -> PlacedModel:
    """Versions of an application as one. All buckets of a version run on one loaded model."""
    models = [each for buckets in versions for each in buckets]
    loaded = [max(buckets, key=lambda each: each.static_bytes) for buckets in versions]
    return PlacedModel(
        name,
        sum(each.rate_rps for each in models),
        sum(each.static_bytes for each in loaded),
        max(each.dynamic_bytes for each in models),
        sum(each.load_cost for each in loaded),
    )


def members_of(config: DeploymentConfig) -> dict[str, tuple[str, ...]]:
    """By application: the router's names of its versions and buckets."""
    found: dict[str, tuple[str, ...]] = {}
    for name, each in zip(router_names(config.served), config.served, strict=True):
        found[each.name] = (*found.get(each.name, ()), name)
    return found


def movable(config: DeploymentConfig) -> dict[str, tuple[str, ...]]:
    """By unit that has one home at a time: the router's names of all that it has."""
    spread, members = spread_over(config), members_of(config)
    return {
        unit: tuple(each for name in names for each in members[name])
        for unit, names in units_of(config).items()
        if names[0] not in spread
    }


def homes_of(
    config: DeploymentConfig,
    plan: Plan,
    opened: int | None = None,
    problem: Problem | None = None,
    by_group: Sequence[Mapping[str, Profile]] = (),
) -> Homes:
    """Homes of all applications by a plan of the units that have one, for the first so many
    sub-clusters. `problem` tells which can live where, unless all can."""
    spread, unit = _everywhere(config, able_on(config, by_group)), unit_names(config)
    served = {at for homes in spread.values() for at in homes}
    count = opened or config.sub_clusters.routers
    home = _filled(plan, [each for each in range(count) if each not in served], count, problem)
    bare = set(range(count)) - served - set(home.values())
    if bare and config.epochs is None:
        raise ConfigError(
            f"backends.{min(bare)} has no application to serve: none is left that may live there "
            "and holds its SLO; leave the group out, or name its models"
        )
    return {
        name: spread[application] if application in spread else (home[unit[application]],)
        for application, names in members_of(config).items()
        for name in names
    }


def _filled(
    plan: Plan, bare: Sequence[int], count: int, problem: Problem | None
) -> Mapping[str, int]:
    """The plan, with an application in each of these sub-clusters where one can live there:
    without any its backends would idle."""
    models = {} if problem is None else {each.name: each for each in problem.models}
    for number in bare:
        by_size = sorted(range(count), key=lambda each: -len(plan.models_of(each)))
        for home in by_size if not plan.models_of(number) else ():
            names = [
                name
                for name in plan.models_of(home)
                if problem is None or _may_live(models[name], problem.sub_clusters[number])
            ]
            if names and len(plan.models_of(home)) > 1:
                plan = Plan({**plan.home, names[-1]: number})
                break
    return plan.home


def all_run(problem: Problem, plan: Plan) -> bool:
    """Whether all models can run where a plan of them has put them."""
    places = problem.sub_clusters
    return all(each.runs_on(places[plan.home[each.name]].kind) for each in problem.models)


def _may_live(model: PlacedModel, place: SubCluster) -> bool:
    return model.runs_on(place.kind) and fits([model], place.memory_bytes)


def known_homes(
    config: DeploymentConfig,
    directory: Directory | None,
    by_group: Sequence[Mapping[str, Profile]] = (),
) -> Homes | None:
    """Homes that routers have been told of, where these are for just this configuration: the file
    may have given a group other models since."""
    if directory is None:
        return None
    found = known_rows(directory, stages_by_pipeline(config))
    whole = set(range(config.sub_clusters.routers))
    members = members_of(config).items()
    given = {name: application for application, names in members for name in names}
    told = {home for homes in found.values() for home in homes}
    may_be_bare = config.epochs is not None or are_apart(config)
    able = able_on(config, by_group)
    spread = _everywhere(config, able)
    fits = (
        found.keys() == given.keys()
        # Moves may leave one without any application.
        and (told == whole or (may_be_bare and told <= whole))
        and all(
            set(homes) == set(spread[given[name]])
            if given[name] in spread
            else len(homes) == 1 and given[name] in able[homes[0]]
            for name, homes in found.items()
        )
        # It may have been told before a pipeline joined them.
        and all(len({found[name] for name in names}) == 1 for names in movable(config).values())
    )
    return found if fits else None


def served_at(homes: Homes, sub_cluster: int) -> tuple[str, ...]:
    """Applications that live in a sub-cluster."""
    return tuple(name for name, at in homes.items() if sub_cluster in at)


def known_rows(directory: Directory, pipelines: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Homes of applications in a directory, which has rows of these pipelines, too."""
    told = directory.homes_by_name()
    return {name: homes for name, homes in told.items() if name not in pipelines}


def sticky_applications(config: DeploymentConfig) -> tuple[str, ...]:
    """Applications whose clients are served by one router each: newer frames replace older ones
    there, or a policy maps clients."""
    router = config.router
    owners = owners_of(config.served, router.policy, router.policy_options)
    alone = tuple(
        name
        for each, (name, policy, _) in zip(config.served, owners, strict=True)
        if each.newest or POLICIES[policy].tells_sizes
    )
    return (*alone, *(each.name for each in config.pipelines if each.newest))


@dataclass(slots=True)
class DirectoryKeeper:
    """Makes the next directory where homes, routers or headroom have changed."""

    directory: Directory
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By pipeline: the router's names of its applications. It lives where all of these do."""

    def homes_of_applications(self) -> dict[str, tuple[int, ...]]:
        """Homes of all that routers hold: pipelines are no part of it."""
        return known_rows(self.directory, self.stages)

    def on_routers(self, routers: Sequence[Home], wall_ms: int) -> None:
        """Tell of routers that lead now."""
        if tuple(routers) != self.directory.homes:
            self._change(wall_ms, homes=tuple(routers))

    def on_moved(self, homes: Mapping[str, int], wall_ms: int) -> None:
        """Tell of applications that have another home."""
        moved = {name: ((home, 1.0),) for name, home in homes.items()}
        self._change(wall_ms, applications={**self.directory.applications, **moved})

    def on_open(
        self, closed: Collection[int], loaded: Mapping[int, Collection[str]], wall_ms: int
    ) -> None:
        """Have applications with several homes served by those alone that are open. One that has
        opened gets its part once it has loaded them."""
        before, changed = self.directory.applications, dict(self.directory.applications)
        for name in self.directory.split_among_several():
            serving = [share for home, share in before[name] if share and home not in closed]
            part = sum(serving) / max(1, len(serving))
            changed[name] = tuple(
                (home, 0.0 if home in closed else share or part * (name in loaded.get(home, ())))
                for home, share in before[name]
            )
        if changed != before:
            self._change(wall_ms, applications=changed)

    def on_headroom(self, headroom: Mapping[int, float], wall_ms: int) -> None:
        """Split applications with several homes by the idle fraction of each."""
        before, changed = self.directory.applications, dict(self.directory.applications)
        for name in self.directory.split_among_several():
            after = shifted(before[name], headroom)
            if is_worth_telling(before[name], after):
                changed[name] = after
        if changed != before:
            self._change(wall_ms, applications=changed)

    def _change(
        self,
        wall_ms: int,
        homes: tuple[Home, ...] | None = None,
        applications: Mapping[str, Shares] | None = None,
    ) -> None:
        told = self.directory
        self.directory = msgspec.structs.replace(
            told,
            version=next_version(told.version, wall_ms),
            homes=told.homes if homes is None else homes,
            applications=told.applications
            if applications is None
            else with_pipelines(applications, self.stages),
        )


def opened_before(homes: Homes, before: Directory) -> int:
    """Sub-clusters that were open: up to the last one that anybody was sent to."""
    return 1 + max(
        home for name in homes for home, share in before.applications[name] if share > 0.0
    )


def first_directory(
    config: DeploymentConfig,
    homes: Homes,
    before: Directory | None,
    wall_ms: int,
    opened: int | None = None,
) -> Directory:
    """The directory of a control plane at its start; shares stay as they were told before. Only
    the first so many sub-clusters have a share."""
    serving = range(config.sub_clusters.routers if opened is None else opened)
    version = next_version(0 if before is None else before.version, wall_ms)
    stages = stages_by_pipeline(config)
    shares = {
        name: tuple((home, float(home in serving) / min(len(at), len(serving))) for home in at)
        for name, at in homes.items()
    }
    if before is not None and known_rows(before, stages) == homes:
        shares = {name: before.applications[name] for name in homes}
    numbers = range(config.sub_clusters.routers)
    rows = with_pipelines(shares, stages)
    return Directory(version, tuple(map(Home, numbers)), rows, sticky_applications(config))
