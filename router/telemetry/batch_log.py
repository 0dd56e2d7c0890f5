"""A log line for every batch and every request that the router drops, for `debug`."""

from fermata.foundation.logs import LOG, fields, in_ms
from fermata.router.core.events import Batch, Drop
from fermata.router.telemetry.meters import Meters


class LoggedMeters(Meters):
    """Counts, and logs each; a router that does not debug has plain meters."""

    def on_dispatch(self, now_ns: int, backend: int, batch: Batch) -> None:
        super().on_dispatch(now_ns, backend, batch)
        LOG.debug(
            "dispatched",
            extra=fields(
                batch=batch.batch_id,
                backend=backend,
                variant=self.built.variants[batch.variant],
                size=batch.size,
                start_in_ms=in_ms(batch.start_at_ns - now_ns),
                plan_ms=in_ms(batch.plan_ns),
                requests=[str(request.rid) for request in batch.requests],
            ),
        )

    def on_done(
        self, now_ns: int, backend: int, batch: Batch, run_ns: int, link_ns: int, ran: bool
    ) -> None:
        super().on_done(now_ns, backend, batch, run_ns, link_ns, ran)
        slack_ns = min(request.deadline_ns for request in batch.requests) - now_ns
        LOG.debug(
            "done",
            extra=fields(
                batch=batch.batch_id,
                backend=backend,
                run_ms=in_ms(run_ns),
                slack_ms=in_ms(slack_ns),
                ran=ran,
            ),
        )

    def on_drop(self, now_ns: int, drop: Drop) -> None:
        super().on_drop(now_ns, drop)
        request = drop.request
        LOG.debug(
            "dropped",
            extra=fields(
                request=str(request.rid),
                application=self.names[request.application],
                reason=drop.reason,
                queued_ms=in_ms(now_ns - request.arrived_at_ns),
            ),
        )
