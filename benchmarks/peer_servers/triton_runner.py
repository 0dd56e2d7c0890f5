"""Our own runner of a network in Triton's Python backend: one instance is one process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from benchmarks.peer_servers.setup import VARIABLE
from fermata.deployments.backend.execution.runners.runner import innermost
from fermata.deployments.backend.kernels.background import builds_of
from fermata.deployments.backend.kernels.choice import load_choice
from fermata.deployments.backend.kernels.tuning import KernelTuner
from fermata.deployments.backend.models.loaders import load_runner
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.specs.backend import ModelSpec
from fermata.foundation.process_memory import settle_garbage


class TritonPythonModel:
    """Names of class and methods are Triton's."""

    def initialize(self, args: dict[str, str]) -> None:
        import torch

        self.torch: Any = torch
        parameters = json.loads(args["model_config"])["parameters"]
        given = json.loads(Path(parameters[VARIABLE]["string_value"]).read_text())
        self.shape = tuple(given["shape"])
        spec = ModelSpec(given["name"], given["model"], given["batch"], self.shape, "UINT8")
        self.runner = load_runner(spec, given["device"], MemoryBudget())
        choice = load_choice(Path(given["choice"]))
        if choice is not None and choice.ways:
            runner = innermost(self.runner)
            KernelTuner(runner, builds_of(), sleep=lambda _: None).apply(choice)
        # As in a backend of ours: pauses of the collector would make batches late.
        settle_garbage()

    def execute(self, requests: list[Any]) -> list[Any]:
        runner = self.runner
        outputs = runner.run(runner.stage([self._input(request) for request in requests]))
        rows = self.torch.from_numpy(np.ascontiguousarray(outputs, np.float32))
        return [self._response(rows[index : index + 1]) for index in range(len(requests))]

    # By DLPack: Triton reads and makes arrays of numpy 1 alone, and takes those of numpy 2 for
    # empty ones.

    def _input(self, request: Any) -> Any:
        given = triton.get_input_tensor_by_name(request, "input").to_dlpack()
        return self.torch.from_dlpack(given).numpy().reshape(self.shape)

    def _response(self, row: Any) -> Any:
        return triton.InferenceResponse([triton.Tensor.from_dlpack("output", row)])
