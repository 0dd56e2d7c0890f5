"""LitServe: a path for each model, inputs as base64 in JSON; answers say the batch's size."""

import base64
from typing import Any

import litserve

from benchmarks.peer_servers.setup import Emulated, ModelSetup, read_setup


class Model(litserve.LitAPI):  # type: ignore[misc]
    """Names of methods are LitServe's."""

    def __init__(self, model: ModelSetup) -> None:
        super().__init__(
            max_batch_size=model.batch_size_max,
            # Without a wait its workers would spin on an empty queue.
            batch_timeout=max(1.0, model.wait_ms) / 1e3,
            api_path=f"/{model.name}",
        )
        self.name = model.name

    def setup(self, device: str) -> None:
        self.emulated = Emulated(read_setup(), self.name)

    def decode_request(self, request: dict[str, str]) -> bytes:
        return base64.b64decode(request["input"])

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return inputs

    def predict(self, x: Any) -> Any:
        size = len(x) if isinstance(x, list) else 1
        self.emulated.run(size)
        return [size] * size if isinstance(x, list) else size

    def unbatch(self, output: list[int]) -> list[int]:
        return output

    def encode_response(self, output: int) -> int:
        return output


def main() -> None:
    setup = read_setup()
    models = [Model(each) for each in setup.models]
    server = litserve.LitServer(
        models,
        accelerator="cpu",
        # The same for every model, whatever GPUs they are on.
        workers_per_device=len(setup.models[0].gpus),
        fast_queue=setup.options["fast_queue"],
        disable_openapi_url=True,
    )
    for api, model in zip(models, setup.models, strict=True):
        if model.queue_ms:
            # `LitServer(timeout=...)` would be one for all of them.
            api.request_timeout = model.queue_ms / 1e3
    server.run(
        host="127.0.0.1",
        port=setup.port,
        num_api_servers=setup.options["api_servers"],
        log_level="critical",
        generate_client_file=False,
    )


if __name__ == "__main__":
    main()
