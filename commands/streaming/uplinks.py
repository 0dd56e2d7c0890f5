"""Emulated uplinks, as an option or a line of a file names them."""

from pathlib import Path

from fermata.clients.network.emulated_link import BandwidthTrace
from fermata.foundation.errors import ConfigError
from fermata.foundation.units import seconds
from fermata.foundation.validation import fields
from fermata.simulator.scenario.network_spec import TRACE_KEYS, read_trace


def read_uplink(given: str, beside: Path | None = None) -> BandwidthTrace | None:
    """Mbit/s as a number, or a CSV file with columns `t_s, mbps`; None where nothing is given."""
    if not given:
        return None
    try:
        mbps = float(given)
    except ValueError:
        file = str(Path(given) if beside is None else beside / given)
        return read_trace(fields("uplink.", "uplink", {"file": file}, TRACE_KEYS))
    if not 0 < mbps < 1e6:
        raise ConfigError(f"uplink={given}: give Mbit/s above 0, or a CSV file")
    return BandwidthTrace((mbps * 1e6,), seconds(1))
