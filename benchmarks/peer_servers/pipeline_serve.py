"""Starts Ray Serve with a pipeline of two stages (`serve_stages`)."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from benchmarks.live_server import ROOT, Running, started
from benchmarks.peer_servers.knobs import UNARY
from benchmarks.peer_servers.launch import PROBE_S, STREAMS, Served
from benchmarks.peer_servers.pipeline_knobs import PipelineKnobs
from benchmarks.peer_servers.pipeline_scene import PipelineScene, setup_of
from benchmarks.peer_servers.setup import VARIABLE
from benchmarks.pipelines_live import FRAME_BYTES, target
from benchmarks.ports import free_port
from fermata.clients.load.sender import Sender, SenderOptions
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.service import InferenceStub

MODULE = "benchmarks.peer_servers.serve_stages"


@contextmanager
def serve_pipeline(scene: PipelineScene, knobs: PipelineKnobs) -> Iterator[Served]:
    """A running peer."""
    port, http_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = setup_of(scene, knobs, folder).write()
        command = [sys.executable, "-m", MODULE, str(path), str(port), str(http_port)]
        packages = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {"RAY_worker_niceness": "0", "PYTHONPATH": packages, VARIABLE: str(path)}
        if knobs.optimized:
            environment["RAY_SERVE_THROUGHPUT_OPTIMIZED"] = "1"
        with started(command, port, _answers, environment, http_port) as running:
            options = SenderOptions(running.address, STREAMS, unary=knobs.way == UNARY)
            yield Served(options, Sender, [target(scene.name, timeout=False)])


def _answers(running: Running) -> bool:
    request = pb.ModelInferRequest(model_name="pipeline", raw_input_contents=[bytes(FRAME_BYTES)])
    with grpc.insecure_channel(running.address) as channel:
        try:
            InferenceStub(channel).ModelInfer(request, timeout=PROBE_S)
        except grpc.RpcError:
            return False
    return True
