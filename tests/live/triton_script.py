"""What a stock Triton client does; a process of its own, as a user's would be."""

import queue
import sys
import time

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException


def numbers(count: int = 4) -> list[triton.InferInput]:
    tensor = triton.InferInput("input", [count], "FP32")
    tensor.set_data_from_numpy(np.arange(count, dtype=np.float32))
    return [tensor]


def main(target: str) -> None:
    client = triton.InferenceServerClient(target)
    result = client.infer("sum", numbers(), request_id="1", priority=1, timeout=500_000)
    assert result.as_numpy("output").tolist() == [6, 0, 3]
    print("unary")

    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for index in range(50):
        client.async_stream_infer("sum", numbers(), request_id=str(index), timeout=500_000)
    ids = set()
    for _ in range(50):
        result, error = answers.get(timeout=10)
        assert error is None, error
        ids.add(result.get_response().id)
    assert ids == {str(index) for index in range(50)}
    client.async_stream_infer("silent", numbers(), request_id="late", timeout=50_000)
    result, error = answers.get(timeout=10)
    assert "DEADLINE_EXCEEDED" in str(error), error
    client.stop_stream()
    print("stream")

    started_at = time.monotonic()
    with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
        client.infer("silent", numbers(), client_timeout=0.05)
    assert time.monotonic() - started_at < 0.3
    print("deadline")

    call = client.async_infer(
        "silent", numbers(), lambda result, error: answers.put((result, error)), timeout=20_000_000
    )
    time.sleep(0.05)
    call.cancel()
    _, error = answers.get(timeout=10)
    assert "CANCELLED" in str(error.status()), error
    print("cancel")

    with pytest.raises(InferenceServerException, match="INVALID_ARGUMENT"):
        client.infer("sum", numbers(5))
    print("refusal")

    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("sum")
    assert client.get_server_metadata().name == "fermata"
    assert client.get_model_metadata("sum").inputs[0].datatype == "FP32"
    assert client.get_model_config("sum").config.name == "sum"
    assert client.get_inference_statistics("sum").model_stats[0].inference_count > 0
    assert len(client.get_model_repository_index().models) > 3
    print("describe")


if __name__ == "__main__":
    main(sys.argv[1])
