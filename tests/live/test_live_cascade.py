"""A picture that a small model is not sure of, through what `deployments/cascade.yaml` serves."""

import json
from pathlib import Path
from shutil import copy
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from served import ROOT, get, serving, wait_until

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import add_input, from_array, response_tensors, split_bytes

pytest.importorskip("torch")
pytestmark = pytest.mark.live


def ask(stub: InferenceStub, pixels: Any) -> dict[str, Any]:
    request = pb.ModelInferRequest(model_name="cascade")
    add_input(request, from_array("input", pixels))
    (tensor,) = response_tensors(stub.ModelInfer(request))
    return dict(json.loads(split_bytes(tensor.data)[0]))


def good(metrics: str) -> bool:
    """Whether the query is counted."""
    lines = [each for each in metrics.splitlines() if 'pipeline="cascade"' in each]
    answered = [each for each in lines if each.startswith("fermata_pipeline_answered_total{")]
    return any('outcome="good"' in each and float(each.split()[-1]) == 1 for each in answered)


@pytest.mark.long
def test_a_large_model_is_asked_where_a_small_one_is_not_sure(tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "deployments/cascade.yaml").read_text())
    config["backend"] = {"count": 1, "device": "cpu", "cpus": 1}
    copy(ROOT / "deployments/cascade.py", tmp_path)
    noise = np.random.default_rng(1).integers(0, 256, (240, 320, 3), np.uint8)
    with (
        serving(tmp_path, config, backends=1) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        answer = ask(InferenceStub(channel), noise)
        wait_until(lambda: good(get(f"http://127.0.0.1:{server.port}/metrics")), 30)
    assert (answer["pipeline"], answer["partial"]) == ("cascade", False)
    assert answer["answer"]["by"] == "large"
    assert len(answer["answer"]["classes"]) == 3
    variants = {name: [each["variant"] for each in row] for name, row in answer["stages"].items()}
    assert variants == {"small": ["lite0"], "large": ["lite2"]}
