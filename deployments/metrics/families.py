"""Every metric of the control plane's `/metrics`; docs/metrics.md is made from this list."""

from fermata.deployments.control.status import DeploymentStatus
from fermata.deployments.metrics import samples
from fermata.deployments.metrics.exposition import SECOND, MetricFamily, exposition

APPLICATION = ("application",)
VARIANT = ("application", "variant")
SUB_CLUSTER = ("subcluster",)
BACKEND = ("backend",)
FRONTEND = ("frontend",)

SECTIONS: tuple[tuple[str, tuple[MetricFamily, ...]], ...] = (
    (
        "What clients see",
        (
            MetricFamily(
                "answered_total",
                "counter",
                "Requests that frontends have answered: good (in time), ran-late (a result after "
                "the SLO), or why there was none.",
                ("application", "outcome"),
                samples.answered,
            ),
            MetricFamily(
                "tenant_answered_total",
                "counter",
                "The same by who asked, of all applications together; denied and too-many also "
                "count who was turned away before asking. Only tenants that are configured.",
                ("tenant", "outcome"),
                samples.tenants,
            ),
            MetricFamily(
                "latency_seconds",
                "histogram",
                "From a request's arrival at the frontend to its result, of those that got one.",
                APPLICATION,
                samples.application_histogram("latency"),
            ),
            MetricFamily(
                "bad_rate",
                "gauge",
                "Share of answers in the last minute that were late or refused through no fault "
                "of the client's.",
                APPLICATION,
                samples.bad_rate,
            ),
            MetricFamily(
                "absent",
                "gauge",
                "1 where nobody is sent to it: not loaded, or withdrawn; /status says why.",
                APPLICATION,
                samples.absent,
            ),
            MetricFamily(
                "slo_seconds", "gauge", "The target, as configured.", APPLICATION, samples.slo
            ),
            MetricFamily(
                "streams",
                "gauge",
                "Clients' streams seen in the last half to one minute.",
                APPLICATION,
                samples.streams("seen"),
            ),
            MetricFamily(
                "worst_stream_bad_rate",
                "gauge",
                "Bad rate of the stream that fares worst, over the same time.",
                APPLICATION,
                samples.streams("worst_bad_rate"),
            ),
        ),
    ),
    (
        "What the router decides",
        (
            MetricFamily(
                "requests_total",
                "counter",
                "Requests that reached the router.",
                APPLICATION,
                samples.each_application("requests"),
            ),
            MetricFamily(
                "good_total",
                "counter",
                "Requests whose batch ended before their deadline, by the router's clock.",
                APPLICATION,
                samples.each_application("good"),
            ),
            MetricFamily(
                "bad_total",
                "counter",
                "Requests that ended otherwise: ran-late, or why they were dropped.",
                ("application", "reason"),
                samples.bad,
            ),
            MetricFamily(
                "queue_delay_seconds",
                "histogram",
                "From a request's arrival at the router to the start of its batch.",
                APPLICATION,
                samples.application_histogram("queue_delay"),
            ),
            MetricFamily(
                "slack_seconds",
                "histogram",
                "What was left until the deadline when the batch ended; below zero: too late. "
                "Its sum may fall, so take quantiles of it, not rates.",
                APPLICATION,
                samples.application_histogram("slack"),
            ),
            MetricFamily(
                "queued",
                "gauge",
                "Requests that wait for a decision.",
                (),
                samples.single("queued"),
            ),
            MetricFamily(
                "dispatched",
                "gauge",
                "Requests that backends have.",
                (),
                samples.single("dispatched"),
            ),
            MetricFamily(
                "timer_late_seconds",
                "histogram",
                "How late the router's timer fires.",
                (),
                samples.single_histogram("timer_late"),
            ),
            MetricFamily(
                "link_round_trip_seconds",
                "histogram",
                "To a backend and back, of batches that found theirs idle; run and fetch aside.",
                (),
                samples.single_histogram("link_round_trip"),
            ),
            MetricFamily(
                "lead_seconds",
                "gauge",
                "How long before its start a batch is decided on, as learnt.",
                (),
                samples.single("lead_ns", SECOND),
            ),
            MetricFamily(
                "policy",
                "gauge",
                "What policies tell of themselves, such as what the tables in use promise.",
                ("application", "figure"),
                samples.policy_figures,
            ),
            MetricFamily(
                "replanning_total",
                "counter",
                "Mappings of clients to variants that were decided.",
                (),
                samples.replanning("decisions"),
            ),
            MetricFamily(
                "replanning_failures_total",
                "counter",
                "Such decisions that failed; the last mapping stays.",
                (),
                samples.replanning("failures"),
            ),
            MetricFamily(
                "router_up_seconds",
                "gauge",
                "Since the router started; counters start anew with it.",
                (),
                samples.single("up_ns", SECOND),
            ),
            MetricFamily(
                "unknown_application_total",
                "counter",
                "Requests for an application that the router does not serve.",
                (),
                samples.single("unknown_application"),
            ),
            MetricFamily(
                "stray_messages_total",
                "counter",
                "Messages on links that made no sense from who sent them.",
                (),
                samples.single("stray_messages"),
            ),
        ),
    ),
    (
        "Variants",
        (
            MetricFamily(
                "batch_size",
                "histogram",
                "Sizes of the batches sent to backends.",
                VARIANT,
                samples.batch_sizes,
            ),
            MetricFamily(
                "variant_requests_total",
                "counter",
                "Requests sent to backends, by the variant chosen for them.",
                VARIANT,
                samples.variant_requests,
            ),
            MetricFamily(
                "margin_factor",
                "gauge",
                "Planned over profiled run time, as learnt from the last batches.",
                VARIANT,
                samples.margin,
            ),
            MetricFamily(
                "expected_right_total",
                "counter",
                "Right answers to expect, by the variants' accuracy or by evidence where there "
                "is some.",
                APPLICATION,
                samples.each_application("expected_right"),
            ),
            MetricFamily(
                "rated_total",
                "counter",
                "Requests that expected_right_total speaks of.",
                APPLICATION,
                samples.each_application("rated"),
            ),
            MetricFamily(
                "accuracy_estimate",
                "gauge",
                "The one over the other, since the router started.",
                APPLICATION,
                samples.accuracy,
            ),
            MetricFamily(
                "model_loads_total",
                "counter",
                "Times that backends have loaded a model.",
                ("variant",),
                samples.loads(0, 1.0),
            ),
            MetricFamily(
                "model_load_seconds_total",
                "counter",
                "Time that those took together.",
                ("variant",),
                samples.loads(1, SECOND),
            ),
        ),
    ),
    (
        "Backends",
        (
            MetricFamily(
                "backends", "gauge", "Backends up.", SUB_CLUSTER, samples.sub_cluster("backends")
            ),
            MetricFamily(
                "idle_fraction",
                "gauge",
                "Share of backend time in the last minute without a batch.",
                SUB_CLUSTER,
                samples.idle,
            ),
            MetricFamily(
                "backend_up_seconds_total",
                "counter",
                "Backend time.",
                SUB_CLUSTER,
                samples.sub_cluster("backend_up_ns", SECOND),
            ),
            MetricFamily(
                "backend_busy_seconds_total",
                "counter",
                "Backend time spent on batches.",
                SUB_CLUSTER,
                samples.sub_cluster("backend_busy_ns", SECOND),
            ),
            MetricFamily(
                "application_busy_seconds_total",
                "counter",
                "The same, by whose batches they were.",
                APPLICATION,
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
                "Mean wait of batches that were ready for a backend.",
                SUB_CLUSTER,
                samples.sub_cluster("ripe_wait_ns", SECOND),
            ),
            MetricFamily(
                "backend_running",
                "gauge",
                "1 while a batch runs there.",
                BACKEND,
                samples.backend_running,
            ),
            MetricFamily(
                "backend_factor",
                "gauge",
                "Its run times over those of its peers, as learnt.",
                BACKEND,
                samples.backend_factor,
            ),
            MetricFamily(
                "backend_models_bytes",
                "gauge",
                "Held by its models.",
                BACKEND,
                samples.backend("models_bytes"),
            ),
            MetricFamily(
                "gpu_used",
                "gauge",
                "Share of time in which its GPU works, as the driver says; absent without one.",
                BACKEND,
                samples.backend("gpu_used"),
            ),
            MetricFamily(
                "gpu_memory_bytes",
                "gauge",
                "In use on its GPU, by whomever.",
                BACKEND,
                samples.backend("gpu_memory_bytes"),
            ),
            MetricFamily(
                "gpu_memory_max_bytes",
                "gauge",
                "All memory of its GPU.",
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
        ),
    ),
    (
        "Autoscaling",
        (
            MetricFamily(
                "advised_backends",
                "gauge",
                "What the autoscaler wants; absent where none is configured.",
                SUB_CLUSTER,
                samples.advice("target"),
            ),
            MetricFamily(
                "advised_change",
                "gauge",
                "How far that is from what there was when it last looked.",
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
        ),
    ),
    (
        "Processes",
        (
            MetricFamily("frontends", "gauge", "Frontends linked.", (), samples.count("frontends")),
            MetricFamily(
                "frontend_open",
                "gauge",
                "Requests without an answer there.",
                FRONTEND,
                samples.frontend("open"),
            ),
            MetricFamily(
                "frontend_payload_bytes",
                "gauge",
                "Memory of their inputs.",
                FRONTEND,
                samples.frontend("payload_bytes"),
            ),
            MetricFamily(
                "frontend_loop_late_seconds",
                "gauge",
                "How late its event loop came to tell this: what it adds to every latency.",
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
        ),
    ),
)
FAMILIES = tuple(family for _, families in SECTIONS for family in families)


def prometheus_text(status: DeploymentStatus) -> str:
    """The whole page of `/metrics`."""
    return exposition(FAMILIES, status)
