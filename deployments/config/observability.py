"""Traces of some requests, and logs."""

from typing import Literal

from fermata.deployments.config.base import Fraction, Positive, Section


class TracesConfig(Section):
    """Spans of some requests, in files of OpenTelemetry's; see docs/operations.md."""

    folder: str
    """Where each frontend writes its file, on its own machine."""
    share: Fraction = 0.001
    """Share of requests; those whose caller's `traceparent` is sampled are always followed."""
    file_mb: Positive = 256
    """Then a file starts anew; the one before it is kept."""


class LogsConfig(Section):
    """JSON lines of each process; see docs/operations.md."""

    level: Literal["error", "warning", "info", "debug"] = "warning"
    """The least that is said; `debug` has a line for every request and every batch."""
    folder: str = ""
    """Where each process writes its file, on its own machine; empty: standard error, which Ray
    keeps among its own logs."""
    file_mb: Positive = 256
    """Then a file starts anew; the one before it is kept."""
