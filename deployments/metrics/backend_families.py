"""Metrics of backends, of their number, and of the processes of a deployment."""

from fermata.deployments.metrics import samples
from fermata.deployments.metrics.exposition import SECOND, MetricFamily

SUB_CLUSTER = ("subcluster",)
BACKEND = ("backend",)
FRONTEND = ("frontend",)

BACKENDS: tuple[MetricFamily, ...] = (
    MetricFamily("backends", "gauge", "Backends up.", SUB_CLUSTER, samples.sub_cluster("backends")),
    MetricFamily(
        "spares",
        "gauge",
        "Processes that wait to take the place of a backend; none of them is a backend.",
        (),
        samples.spares,
    ),
    MetricFamily(
        "idle_fraction",
        "gauge",
        "Share of backend time without a batch, in the last minute.",
        SUB_CLUSTER,
        samples.idle,
    ),
    MetricFamily(
        "backend_up_seconds_total",
        "counter",
        "Time that backends were up.",
        SUB_CLUSTER,
        samples.sub_cluster("backend_up_ns", SECOND),
    ),
    MetricFamily(
        "backend_busy_seconds_total",
        "counter",
        "Time that backends ran batches.",
        SUB_CLUSTER,
        samples.sub_cluster("backend_busy_ns", SECOND),
    ),
    MetricFamily(
        "application_busy_seconds_total",
        "counter",
        "Time that backends ran batches, by application.",
        ("application",),
        samples.application_busy,
    ),
    MetricFamily(
        "demand",
        "gauge",
        "Backends needed with full batches.",
        SUB_CLUSTER,
        samples.sub_cluster("demand"),
    ),
    MetricFamily(
        "ripe_wait_seconds",
        "gauge",
        "Mean wait of ripe batches for a backend.",
        SUB_CLUSTER,
        samples.sub_cluster("ripe_wait_ns", SECOND),
    ),
    MetricFamily(
        "backend_running",
        "gauge",
        "1 while a batch runs on the backend.",
        BACKEND,
        samples.backend_running,
    ),
    MetricFamily(
        "backend_factor",
        "gauge",
        "Learnt run times of the backend over those of its peers.",
        BACKEND,
        samples.backend_factor,
    ),
    MetricFamily(
        "backend_models_bytes",
        "gauge",
        "Memory of its models.",
        BACKEND,
        samples.backend("models_bytes"),
    ),
    MetricFamily(
        "gpu_used",
        "gauge",
        "Share of time in which its GPU runs a kernel; absent without a GPU.",
        BACKEND,
        samples.backend("gpu_used"),
    ),
    MetricFamily(
        "gpu_memory_bytes",
        "gauge",
        "Memory in use on its GPU, by all processes.",
        BACKEND,
        samples.backend("gpu_memory_bytes"),
    ),
    MetricFamily(
        "gpu_memory_max_bytes",
        "gauge",
        "Total memory of its GPU.",
        BACKEND,
        samples.backend("gpu_memory_bytes_max"),
    ),
    MetricFamily(
        "failures_total",
        "counter",
        "Batches and loads that failed on backends.",
        (),
        samples.single("failures"),
    ),
)
AUTOSCALING: tuple[MetricFamily, ...] = (
    MetricFamily(
        "advised_backends",
        "gauge",
        "Backends that the autoscaler advises; absent without an autoscaler.",
        SUB_CLUSTER,
        samples.advice("target"),
    ),
    MetricFamily(
        "advised_change",
        "gauge",
        "Advised backends less those that were up at the time.",
        SUB_CLUSTER,
        samples.advice("change"),
    ),
    MetricFamily(
        "moved_total",
        "counter",
        "Applications moved between sub-clusters.",
        (),
        samples.moved,
    ),
)
PROCESSES: tuple[MetricFamily, ...] = (
    MetricFamily("frontends", "gauge", "Frontends linked.", (), samples.count("frontends")),
    MetricFamily(
        "frontend_open",
        "gauge",
        "Requests without an answer at the frontend.",
        FRONTEND,
        samples.frontend("open"),
    ),
    MetricFamily(
        "frontend_payload_bytes",
        "gauge",
        "Memory of the inputs of open requests.",
        FRONTEND,
        samples.frontend("payload_bytes"),
    ),
    MetricFamily(
        "frontend_loop_late_seconds",
        "gauge",
        "Delay of its event loop, which adds to every latency.",
        FRONTEND,
        samples.frontend("loop_late_ns", SECOND),
    ),
    MetricFamily(
        "process_memory_bytes",
        "gauge",
        "Resident memory.",
        ("role", "number"),
        samples.process_memory,
    ),
)
