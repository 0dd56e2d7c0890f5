"""Measures a variant that comes without a profile, on the kind of device that will run it."""

import time
from typing import Any

from deployments.backend.loaders import pick_device
from deployments.config import read_config
from deployments.models.catalog import open_model
from deployments.plan import variants
from profiles.devices import open_device
from profiles.errors import ConfigError
from profiles.profile import Profile
from profiles.profiler import profile_model


def measure_variant(config: dict[str, Any], application: str, variant: str) -> Profile:
    """Run times at powers of two up to the variant's largest batch."""
    for each, one in variants(read_config(config)):
        if (each.name, one.name) == (application, variant):
            break
    else:
        raise ConfigError(f"no variant {variant!r} of {application!r}")
    device = pick_device(read_config(config).backend.device)
    sizes = [1]
    while sizes[-1] < one.batch_size_max:
        sizes.append(min(2 * sizes[-1], one.batch_size_max))
    outcome = profile_model(
        lambda: open_model(one.model, device, tuple(each.input.shape)),
        sizes,
        open_device(device),
        time.perf_counter_ns,
        cuda=device == "cuda",
        graphs=device == "cuda",
    )
    return outcome.profile
