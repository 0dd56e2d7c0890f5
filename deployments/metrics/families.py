"""All metrics of the control plane's `/metrics`; docs/metrics.md is made from this list."""

from fermata.deployments.metrics import backend_families, cameras, pipelines, samples
from fermata.deployments.metrics.exposition import SECOND, MetricFamily, exposition
from fermata.deployments.specs.status import DeploymentStatus

APPLICATION = ("application",)
VARIANT = ("application", "variant")

SECTIONS: tuple[tuple[str, tuple[MetricFamily, ...]], ...] = (
    (
        "Clients",
        (
            MetricFamily(
                "answered_total",
                "counter",
                "Requests answered by frontends. The outcome is good (in time), ran-late (after "
                "the SLO), or the reason of a refusal.",
                ("application", "outcome"),
                samples.answered,
            ),
            MetricFamily(
                "tenant_answered_total",
                "counter",
                "Requests answered by frontends, for each configured tenant. denied and too-many "
                "include calls that were refused before they named a model.",
                ("tenant", "outcome"),
                samples.tenants,
            ),
            MetricFamily(
                "latency_seconds",
                "histogram",
                "Time from a request's arrival at the frontend to its result.",
                APPLICATION,
                samples.application_histogram("latency"),
            ),
            MetricFamily(
                "bad_rate",
                "gauge",
                "Share of answers in the last minute that were late or refused. Refusals that "
                "clients cause themselves do not count.",
                APPLICATION,
                samples.bad_rate,
            ),
            MetricFamily(
                "absent",
                "gauge",
                "1 if the application is not loaded or withdrawn; /status has the reason.",
                APPLICATION,
                samples.absent,
            ),
            MetricFamily("slo_seconds", "gauge", "The configured SLO.", APPLICATION, samples.slo),
            MetricFamily(
                "streams",
                "gauge",
                "Streams of clients seen in the last half to one minute.",
                APPLICATION,
                samples.streams("seen"),
            ),
            MetricFamily(
                "worst_stream_bad_rate",
                "gauge",
                "Highest bad rate of any stream, over the same time.",
                APPLICATION,
                samples.streams("worst_bad_rate"),
            ),
        ),
    ),
    ("Cameras", cameras.FAMILIES),
    ("Pipelines", pipelines.FAMILIES),
    (
        "Router",
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
                "Requests that ended otherwise: ran-late, or the reason of the drop.",
                ("application", "reason"),
                samples.bad,
            ),
            MetricFamily(
                "queue_delay_seconds",
                "histogram",
                "Time from a request's arrival at the router to the start of its batch.",
                APPLICATION,
                samples.application_histogram("queue_delay"),
            ),
            MetricFamily(
                "slack_seconds",
                "histogram",
                "Time left until the deadline when the batch ended; below zero: too late. "
                "Its sum may fall, so take quantiles of it, not rates.",
                APPLICATION,
                samples.application_histogram("slack"),
            ),
            MetricFamily(
                "queued",
                "gauge",
                "Requests that wait at the router.",
                (),
                samples.single("queued"),
            ),
            MetricFamily(
                "dispatched",
                "gauge",
                "Requests at backends.",
                (),
                samples.single("dispatched"),
            ),
            MetricFamily(
                "timer_late_seconds",
                "histogram",
                "Delay of the router's timer.",
                (),
                samples.single_histogram("timer_late"),
            ),
            MetricFamily(
                "link_round_trip_seconds",
                "histogram",
                "Round trip to an idle backend and back, without fetch and run.",
                (),
                samples.single_histogram("link_round_trip"),
            ),
            MetricFamily(
                "lead_seconds",
                "gauge",
                "Longest lead time of any application: from the decision on a batch to its start.",
                (),
                samples.single("lead_ns", SECOND),
            ),
            MetricFamily(
                "policy",
                "gauge",
                "Figures that a policy reports, such as the bad rate that its tables predict.",
                ("application", "figure"),
                samples.policy_figures,
            ),
            MetricFamily(
                "replanning_total",
                "counter",
                "Decisions on the mapping of clients to variants.",
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
                "Time since the router started; counters start anew with it.",
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
                "Messages on links that their sender had no business to send.",
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
                "Sizes of batches sent to backends.",
                VARIANT,
                samples.batch_sizes,
            ),
            MetricFamily(
                "variant_requests_total",
                "counter",
                "Requests sent to backends, by variant.",
                VARIANT,
                samples.variant_requests,
            ),
            MetricFamily(
                "margin_factor",
                "gauge",
                "Planned over profiled run time, learnt from the last batches.",
                VARIANT,
                samples.margin,
            ),
            MetricFamily(
                "expected_right_total",
                "counter",
                "Expected number of right answers, by evidence or by the variants' accuracy.",
                APPLICATION,
                samples.each_application("expected_right"),
            ),
            MetricFamily(
                "rated_total",
                "counter",
                "Requests that expected_right_total covers.",
                APPLICATION,
                samples.each_application("rated"),
            ),
            MetricFamily(
                "accuracy_estimate",
                "gauge",
                "expected_right_total over rated_total, since the router started.",
                APPLICATION,
                samples.accuracy,
            ),
            MetricFamily(
                "looked_total",
                "counter",
                "Requests that were looked at.",
                APPLICATION,
                samples.looks("looked"),
            ),
            MetricFamily(
                "short_circuits_total",
                "counter",
                "Requests that a look was the answer to.",
                APPLICATION,
                samples.looks("short_circuits"),
            ),
            MetricFamily(
                "frequency_alarms_total",
                "counter",
                "Changes of class frequencies that were found.",
                APPLICATION,
                samples.looks("alarms"),
            ),
            MetricFamily(
                "truths_total",
                "counter",
                "True classes told by clients, of those that counted.",
                APPLICATION,
                samples.looks("truths"),
            ),
            MetricFamily(
                "truths_refused_total",
                "counter",
                "True classes beyond their tenant's share.",
                APPLICATION,
                samples.looks("truths_refused"),
            ),
            MetricFamily(
                "short_circuits_judged_total",
                "counter",
                "Short circuits whose true class was told.",
                APPLICATION,
                samples.looks("judged"),
            ),
            MetricFamily(
                "short_circuits_right_total",
                "counter",
                "Short circuits that were right, of those.",
                APPLICATION,
                samples.looks("right"),
            ),
            MetricFamily(
                "class_share",
                "gauge",
                "Share of each of the 20 most frequent classes, as learnt.",
                ("application", "class"),
                samples.class_shares,
            ),
            MetricFamily(
                "model_loads_total",
                "counter",
                "Loads of a model, on all backends.",
                ("variant",),
                samples.loads(0, 1.0),
            ),
            MetricFamily(
                "model_load_seconds_total",
                "counter",
                "Time of all loads of a model.",
                ("variant",),
                samples.loads(1, SECOND),
            ),
            MetricFamily(
                "non_finite_outputs_total",
                "counter",
                "Requests whose outputs held a NaN or an infinity; those run again count again.",
                ("variant",),
                samples.non_finite,
            ),
        ),
    ),
    (
        "Promises",
        (
            MetricFamily(
                "promised_accuracy",
                "gauge",
                "Accuracy that the policy promised for the requests of the last minute; absent "
                "where it promises nothing.",
                APPLICATION,
                samples.promised("accuracy"),
            ),
            MetricFamily(
                "observed_accuracy",
                "gauge",
                "Expected accuracy of the answers of the same time.",
                APPLICATION,
                samples.observed("accuracy"),
            ),
            MetricFamily(
                "promised_violation",
                "gauge",
                "Share of late and refused requests that the policy promised for the last minute.",
                APPLICATION,
                samples.promised("violation"),
            ),
            MetricFamily(
                "observed_violation",
                "gauge",
                "Share of answers of the same time that were late or refused.",
                APPLICATION,
                samples.observed("bad_rate"),
            ),
        ),
    ),
    ("Backends", backend_families.BACKENDS),
    ("Autoscaling", backend_families.AUTOSCALING),
    ("Processes", backend_families.PROCESSES),
)
FAMILIES = tuple(family for _, families in SECTIONS for family in families)


def prometheus_text(status: DeploymentStatus) -> str:
    """The whole page of `/metrics`."""
    return exposition(FAMILIES, status)
