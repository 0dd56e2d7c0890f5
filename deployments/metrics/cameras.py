"""Metrics of clients that report their network, for a bounded number of them."""

from collections import Counter
from collections.abc import Callable, Iterator

from fermata.deployments.metrics.exposition import MetricFamily, Sample
from fermata.deployments.specs.status import DeploymentStatus
from fermata.router.telemetry.snapshot import CameraSnapshot

CAMERAS_MAX = 100
"""Cameras with figures of their own. Clients choose their names, and each name is a time series."""
SERVED = "served"
CAMERA = ("application", "camera")


def _listed(status: DeploymentStatus) -> list[CameraSnapshot]:
    """The first ones by name: the worst ones would be others in every scrape."""
    by_name = sorted(status.router.cameras, key=lambda each: (each.application, each.client))
    return by_name[:CAMERAS_MAX]


def _each(figure: Callable[[CameraSnapshot], float]) -> Callable[..., Iterator[Sample]]:
    """One figure of every camera that is listed."""

    def read(status: DeploymentStatus) -> Iterator[Sample]:
        for told in _listed(status):
            yield {"application": told.application, "camera": told.client}, figure(told)

    return read


def _states(status: DeploymentStatus) -> Iterator[Sample]:
    counts = Counter(
        (told.application, SERVED if told.served else told.reason) for told in status.router.cameras
    )
    for (application, state), count in sorted(counts.items()):
        yield {"application": application, "state": state}, count


def _variants(status: DeploymentStatus) -> Iterator[Sample]:
    for told in _listed(status):
        if told.served:
            about = {"application": told.application, "camera": told.client}
            yield {**about, "variant": told.variant}, 1


FAMILIES = (
    MetricFamily(
        "cameras",
        "gauge",
        "Clients that report their network, of the last 1,000 that did. The state is served, or "
        "the reason of being left out.",
        ("application", "state"),
        _states,
    ),
    MetricFamily(
        "camera_served",
        "gauge",
        "1 while the camera is mapped to a variant. Of all cameras, the first "
        f"{CAMERAS_MAX} by name have this and the figures below.",
        CAMERA,
        _each(lambda told: told.served),
    ),
    MetricFamily(
        "camera_variant",
        "gauge",
        "1 for the variant that the camera is mapped to.",
        (*CAMERA, "variant"),
        _variants,
    ),
    MetricFamily(
        "camera_bandwidth_bps",
        "gauge",
        "Bits a second that the camera measures on its uplink.",
        CAMERA,
        _each(lambda told: told.bandwidth_bps),
    ),
    MetricFamily(
        "camera_fps",
        "gauge",
        "Frames of the camera that came in the last full second.",
        CAMERA,
        _each(lambda told: told.fps),
    ),
    MetricFamily(
        "camera_declared_fps",
        "gauge",
        "Frames a second that the camera says it sends.",
        CAMERA,
        _each(lambda told: told.declared_fps),
    ),
    MetricFamily(
        "camera_size_asked",
        "gauge",
        "Side, in pixels, that the camera was told to send; 0 before it was told.",
        CAMERA,
        _each(lambda told: told.size_asked),
    ),
    MetricFamily(
        "camera_size_sent",
        "gauge",
        "Side, in pixels, of the camera's last frame.",
        CAMERA,
        _each(lambda told: told.size_sent),
    ),
    MetricFamily(
        "camera_missed_ratio",
        "gauge",
        "Share of the camera's frames of the last half to one minute that were late or refused.",
        CAMERA,
        _each(lambda told: told.missed_share),
    ),
)
