"""A live server whose clients meet the native edge, and one that is asked for it with TLS."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

pytest.importorskip("ray")
from served import ROOT, Server, load, serving

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub
from fermata.deployments.frontend.edge.build import EDGE

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(bool(EDGE.reason_not()), reason="the native edge is not built here"),
]


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    EDGE.build()
    folder = tmp_path_factory.mktemp("edge")
    config: dict[str, Any] = yaml.safe_load((ROOT / "deployments/emulated.yaml").read_text())
    config["frontend"] = {"processes": 2, "edge": "native"}
    config["logs"] = {"level": "info", "folder": str(folder / "logs")}
    with serving(folder, config, backends=2) as server:
        yield server
        assert said(folder).count("the native edge serves") == 2


def said(folder: Path) -> list[str]:
    files = sorted((folder / "logs").glob("*.jsonl"))
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return [line["event"] for line in lines]


def test_streams_are_served_in_time(edge: Server) -> None:
    result = load(edge, "emulated", rate=100, seconds=2)
    assert result["good"] > 0.9 * result["requests"] > 0


def test_calls_are_served_and_refused_by_name(edge: Server) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{edge.grpc_port}") as channel:
        stub = InferenceStub(channel)
        assert stub.ServerReady(pb.ServerReadyRequest()).ready
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(pb.ModelInferRequest(model_name="nobody"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert "nobody" in caught.value.details()
        assert dict(caught.value.trailing_metadata())["fermata-reason"]
