"""A process of Ray's, started ahead: a router that dies is back sooner by what its start takes.

Half of a restart is a new process and its import of Ray. Ray starts processes ahead where it is
asked to, and gives the next actor one that idles. It has no public call for that yet, so whatever
is missing or refused here costs that time, and nothing else.
"""

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import ray

from fermata.foundation.logs import LOG, fields

AFTER_S = 3.0
"""A router that has just started leaves the cores to those who have waited for it."""
LOOK_S = 60.0
"""Another actor may have taken the process, or Ray has ended it."""
KEPT_S = 86_400
"""Ray ends no process before that which idles; one whose router is gone for good does not stay."""
ASK_S = 5.0
IDLE = b"ray::IDLE"
"""Title of such a process."""


def idle_processes() -> set[int]:
    """Processes of Ray's that idle on this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # It may have ended since.
        with suppress(OSError):
            if path.read_bytes().startswith(IDLE):
                found.add(int(path.parent.name))
    return found


def _ask() -> None:
    """Ask this machine's raylet for an idle process with the environment of this one."""
    # Ray's own parts, without types.
    grpc_utils: Any = import_module("ray._private.grpc_utils")
    common: Any = import_module("ray.core.generated.common_pb2")
    raylet: Any = import_module("ray.core.generated.node_manager_pb2")
    services: Any = import_module("ray.core.generated.node_manager_pb2_grpc")
    cluster: Any = ray
    context = cluster.get_runtime_context()
    own = context.get_node_id()
    node = next(each for each in cluster.nodes() if each["NodeID"] == own)
    request = raylet.PrestartWorkersRequest(
        language=common.Language.PYTHON, keep_alive_duration_secs=KEPT_S, num_workers=1
    )
    # Ray gives an actor no process of another environment.
    request.runtime_env_info.serialized_runtime_env = context.get_runtime_env_string()
    channel = grpc_utils.init_grpc_channel(
        f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    )
    try:
        services.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=ASK_S)
    finally:
        channel.close()


def stay_ahead(
    ask: Callable[[], None] = _ask,
    idle: Callable[[], Collection[int]] = idle_processes,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Have a process of Ray's idle on this machine from now on; for a thread."""
    sleep(AFTER_S)
    try:
        ask()
        while True:
            sleep(LOOK_S)
            if not idle():
                ask()
    # Ray's own parts may move, and a raylet that ends answers anything.
    except Exception as error:
        LOG.info("no process is started ahead", extra=fields(reason=repr(error)))


def begin() -> None:
    """Stay ahead in the background, until this process ends."""
    threading.Thread(target=stay_ahead, name="started-ahead", daemon=True).start()
