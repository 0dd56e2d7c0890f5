"""Triton with a pipeline of two stages: as an ensemble, or as a script that calls both (BLS)."""

import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.http_load import HttpOptions, HttpSender, post
from benchmarks.live_server import Running, started
from benchmarks.peer_servers.fan_out import CROP_BYTES
from benchmarks.peer_servers.knobs import HTTP, UNARY
from benchmarks.peer_servers.launch import (
    CONNECTIONS,
    PROBE_S,
    STREAMS,
    Served,
    add_triton_backend,
    add_triton_model,
    triton_command,
    triton_environment,
    triton_head,
)
from benchmarks.peer_servers.pipeline_knobs import BLS, PipelineKnobs
from benchmarks.peer_servers.pipeline_scene import PipelineScene, setup_of
from benchmarks.peer_servers.setup import VARIABLE, ModelSetup
from benchmarks.peer_servers.venv import Venv
from benchmarks.pipelines_live import FRAME_BYTES, target
from benchmarks.ports import free_port
from fermata.clients.load.sender import Sender, SenderOptions

CODE = "from benchmarks.peer_servers.{module} import TritonPythonModel  # noqa: F401\n"
TENSOR = '[{{name: "{name}" data_type: TYPE_{kind} dims: [{size}]}}]'
PARAMETERS = 'parameters {{key: "{variable}" value: {{string_value: "{path}"}}}}\n'
STAGE = """\
name: "{name}"
backend: "python"
max_batch_size: {batch}
input {input}
output {output}
instance_group [{groups}]
dynamic_batching {{
  max_queue_delay_microseconds: {wait_us}
  {preferred}
  default_queue_policy {{
    timeout_action: REJECT
    default_timeout_microseconds: {queue_us}
    allow_timeout_override: true
  }}
}}
{parameters}"""
SCRIPT = """\
name: "pipeline"
backend: "python"
max_batch_size: 0
model_transaction_policy {{decoupled: true}}
input {input}
output {output}
instance_group [{{count: {scripts} kind: KIND_CPU}}]
{parameters}"""
TOGETHER = """\
name: "pipeline"
platform: "ensemble"
max_batch_size: 1
input {input}
output {output}
ensemble_scheduling {{
  step [
    {{
      model_name: "{first}" model_version: -1
      input_map {{key: "input" value: "input"}} output_map {{key: "output" value: "crop"}}
    }},
    {{
      model_name: "{second}" model_version: -1
      input_map {{key: "input" value: "crop"}} output_map {{key: "output" value: "output"}}
    }}
  ]
}}
"""


def _tensor(name: str, size: int, kind: str = "UINT8") -> str:
    return TENSOR.format(name=name, kind=kind, size=size)


def _group(gpu: int, place: int, limited: bool) -> str:
    """One instance on one GPU."""
    limiter = ""
    if limited:
        # The larger number has the fewer turns.
        limiter = (
            f'rate_limiter {{resources [{{name: "gpu{gpu}" global: true count: 1}}] '
            f"priority: {2 - place}}}"
        )
    return f'{{name: "gpu{gpu}" count: 1 kind: KIND_CPU {limiter}}}'


def stage_config(stage: ModelSetup, place: int, knobs: PipelineKnobs, parameters: str) -> str:
    """The file of one stage."""
    preferred = knobs.preferred[place]
    return STAGE.format(
        name=stage.name,
        batch=stage.batch_size_max,
        input=_tensor("input", (FRAME_BYTES, CROP_BYTES)[place]),
        output=_tensor("output", CROP_BYTES),
        groups=", ".join(_group(gpu, place, knobs.limiter) for gpu in stage.gpus),
        wait_us=round(stage.wait_ms * 1000),
        preferred=f"preferred_batch_size: [{preferred}]" if preferred else "",
        queue_us=round(stage.queue_ms * 1000),
        parameters=parameters,
    )


def _lay_out(venv: Venv, scene: PipelineScene, peer: str, knobs: PipelineKnobs, name: str) -> None:
    """The model repository."""
    folder = Path(name)
    setup = setup_of(scene, knobs, name)
    parameters = PARAMETERS.format(variable=VARIABLE, path=setup.write())
    add_triton_backend(venv, folder)
    for place, stage in enumerate(setup.models):
        config = stage_config(stage, place, knobs, parameters)
        add_triton_model(folder, stage.name, config, CODE.format(module="triton_stage"))
    tensor = _tensor("input", FRAME_BYTES)
    if peer == BLS:
        output = _tensor("output", 1, "FP32")
        config = SCRIPT.format(
            input=tensor, output=output, scripts=knobs.scripts, parameters=parameters
        )
        add_triton_model(folder, "pipeline", config, CODE.format(module="triton_bls"))
    else:
        first, second = (each.name for each in setup.models)
        output = _tensor("output", CROP_BYTES)
        config = TOGETHER.format(input=tensor, output=output, first=first, second=second)
        add_triton_model(folder, "pipeline", config)


@contextmanager
def triton_pipeline(
    venv: Venv, scene: PipelineScene, peer: str, knobs: PipelineKnobs
) -> Iterator[Served]:
    """A running server."""
    with tempfile.TemporaryDirectory() as folder:
        _lay_out(venv, scene, peer, knobs, folder)
        port, grpc_port = free_port(), free_port()
        command = triton_command(venv, folder, port, grpc_port)
        if knobs.limiter:
            command.append("--rate-limit=execution_count")

        def ready(running: Running) -> bool:
            url = f"http://127.0.0.1:{port}/v2/health/ready"
            with urllib.request.urlopen(url, timeout=PROBE_S) as answer:
                return bool(answer.status == 200)

        # It waits half a minute for instances that Ctrl-C has already ended.
        environment = triton_environment(venv)
        with started(command, grpc_port, ready, environment, together=False) as running:
            yield _served(running, port, scene, peer, knobs)


def _served(
    running: Running, http_port: int, scene: PipelineScene, peer: str, knobs: PipelineKnobs
) -> Served:
    shape = (FRAME_BYTES,) if peer == BLS else (1, FRAME_BYTES)
    query = target(scene.name, shape, timeout=False)
    if knobs.way == HTTP:
        head = triton_head(FRAME_BYTES)
        extra = f"Inference-Header-Content-Length: {len(head)}"
        body = head + bytes(FRAME_BYTES)
        request = post("/v2/models/pipeline/infer", body, "application/octet-stream", extra)
        options = HttpOptions(f"127.0.0.1:{http_port}", CONNECTIONS, requests=(request,))
        return Served(options, HttpSender, [query])
    unary = knobs.way == UNARY
    return Served(SenderOptions(running.address, STREAMS, unary=unary), Sender, [query])
