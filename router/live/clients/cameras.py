"""Each client that reports its network, as its operator sees it."""

from collections.abc import Iterator
from dataclasses import replace

from fermata.router.live.clients.client_mapping import ClientMapping
from fermata.router.policies.jellyfish.known_clients import KnownClient
from fermata.router.policies.jellyfish.left_out import why_left_out
from fermata.router.policies.jellyfish.source import Jellyfish
from fermata.router.telemetry.meters import Meters
from fermata.router.telemetry.snapshot import CameraSnapshot

CAMERAS_MAX = 1000
"""Cameras listed, those that reported last: a snapshot holds up the router's loop."""


def cameras(mapping: ClientMapping, meters: Meters) -> list[CameraSnapshot]:
    """The cameras of every application whose policy maps clients."""
    found: list[CameraSnapshot] = []
    for number, source in mapping.sources.items():
        names: set[str] = set()
        for known in _latest(source, CAMERAS_MAX - len(found)):
            seen = _camera(mapping, meters, number, source, known)
            if seen.client in names:
                # Two tenants may each have a camera of that name.
                seen = replace(seen, client=f"{seen.client} ({known.last.client})")
            names.add(seen.client)
            found.append(seen)
    return found


def _latest(source: Jellyfish, count: int) -> Iterator[KnownClient]:
    for place, known in enumerate(reversed(source.clients.values())):
        if place >= count:
            return
        yield known


def _camera(
    mapping: ClientMapping, meters: Meters, number: int, source: Jellyfish, known: KnownClient
) -> CameraSnapshot:
    client = known.last.client
    backend = source.mapped.get(client, -1)
    advice = source.advised.get(client)
    frames, missed = meters.applications[number].streams.of(client)
    served = backend in source.workers
    variant = source.variants[source.workers[backend].dnn] if served else -1
    return CameraSnapshot(
        application=mapping.names[number],
        client=mapping.called.get((number, client)) or str(client),
        bandwidth_bps=known.last.bandwidth_bps,
        declared_fps=known.last.fps,
        fps=known.measured_fps,
        size_asked=0 if advice is None else advice[0],
        size_sent=known.last.input_size,
        source_size=known.last.source_size,
        variant=mapping.built.variants[variant] if served else "",
        backend=backend,
        frames=frames,
        missed=missed,
        served=served,
        reason="" if served else str(why_left_out(source, known)),
    )
