"""What a stock Triton client does to load, unload and choose versions; a process of its own."""

import sys
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

TIMEOUT_US = 5_000_000


def ink() -> list[triton.InferInput]:
    tensor = triton.InferInput("input", [1, 64], "FP32")
    tensor.set_data_from_numpy(np.full((1, 64), 8, np.float32))
    return [tensor]


def served_by(client: triton.InferenceServerClient, version: str = "") -> tuple[str, str]:
    """(version, variant) that answered."""
    result = client.infer("pair", ink(), model_version=version, timeout=TIMEOUT_US)
    response = result.get_response()
    return response.model_version, response.parameters["variant"].string_param


def states(client: triton.InferenceServerClient) -> dict[tuple[str, str], str]:
    index = client.get_model_repository_index()
    return {(each.name, each.version): each.state for each in index.models}


def main(target: str) -> None:
    client = triton.InferenceServerClient(target)
    assert client.is_model_ready("pair")
    assert not client.is_model_ready("pair", "2")
    assert states(client)["pair", "2"] == "UNAVAILABLE"
    assert served_by(client) == ("1", "pair-one")
    with pytest.raises(InferenceServerException, match="it is not loaded"):
        served_by(client, "2")
    print("asked")

    # Traffic goes on while the new version is loaded, and moves to it once that is warm.
    seen: list[str] = []
    done = threading.Event()

    def keep_asking() -> None:
        while not done.is_set():
            seen.append(served_by(client)[0])
            time.sleep(0.01)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    client.load_model("pair@2")
    assert served_by(client) == ("2", "pair-two")
    done.set()
    asking.join(10)
    assert seen
    assert seen == sorted(seen)
    assert served_by(client, "1") == ("1", "pair-one")
    assert client.is_model_ready("pair", "2")
    assert states(client)["pair", "2"] == "READY"
    print("loaded")

    client.unload_model("pair@2")
    assert served_by(client) == ("1", "pair-one")
    assert not client.is_model_ready("pair", "2")
    # And once more: what was given back can be had again.
    client.load_model("pair@2")
    assert served_by(client, "2") == ("2", "pair-two")
    client.unload_model("pair@2")
    print("unloaded")

    client.unload_model("pair")
    assert not client.is_model_ready("pair")
    with pytest.raises(InferenceServerException, match="it is not loaded"):
        served_by(client)
    client.load_model("pair@1")
    assert served_by(client) == ("1", "pair-one")
    print("whole")

    with pytest.raises(InferenceServerException, match="is no TorchScript file"):
        client.load_model("broken")
    with pytest.raises(InferenceServerException, match="'nothing' is not served here"):
        client.load_model("nothing")
    with pytest.raises(InferenceServerException, match="'config' is not supported"):
        client.load_model("pair", config="{}")
    print("refused")


if __name__ == "__main__":
    main(sys.argv[1])
