"""mosec: a route for each model, inputs as the bytes of a POST; answers say the batch's size."""

import os
import sys
from typing import Any

from mosec import Server, Worker

from benchmarks.peer_servers.setup import Emulated, read_setup

MODEL = "PEER_MODEL"
FORWARD_S = 3
"""Longest run of a batch, with its wait for the GPU: never reached."""


class Model(Worker):  # type: ignore[misc]
    """Names of methods are mosec's."""

    def __init__(self) -> None:
        super().__init__()
        self.emulated = Emulated(read_setup(), os.environ[MODEL])

    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: Any) -> Any:
        size = len(data) if isinstance(data, list) else 1
        self.emulated.run(size)
        answer = str(size).encode()
        return [answer] * size if isinstance(data, list) else answer


def main() -> None:
    setup = read_setup()
    # One for all routes: nothing is given up before the laxest model would.
    timeout_ms = round(max(each.queue_ms for each in setup.models)) or FORWARD_S * 1000
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", str(setup.port)]
    sys.argv += ["--log-level", "warning", "--timeout", str(timeout_ms)]
    server = Server()
    for model in setup.models:
        server.append_worker(
            Model,
            num=len(model.gpus),
            max_batch_size=model.batch_size_max,
            max_wait_time=max(1, round(model.wait_ms)),
            timeout=FORWARD_S,
            route=f"/{model.name}",
            env=[{MODEL: model.name} for _ in model.gpus],
        )
    server.run()


if __name__ == "__main__":
    main()
