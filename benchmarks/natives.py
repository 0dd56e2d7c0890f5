"""Native parts of a server, which `make edge compiled` builds: used where they are built."""

import sys
from collections.abc import Mapping
from typing import Any

from fermata.deployments.frontend.edge.build import EDGE
from fermata.foundation.native import builds_folder, source_mark


def with_natives(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a configuration, with the native edge and router where they are built."""
    edge = "native" if EDGE.path().exists() else "grpc"
    compiled = (builds_folder() / source_mark()).is_dir()
    router = "compiled" if compiled else "interpreted"
    print(f"  served by the {edge} edge and the {router} router", file=sys.stderr)
    return {
        **config,
        "frontend": {**config.get("frontend", {}), "edge": edge},
        "router": {**config.get("router", {}), "compiled": compiled},
    }
