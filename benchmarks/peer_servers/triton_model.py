"""The model that Triton's Python backend loads: one instance is one process."""

import json
import os
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from benchmarks.peer_servers.setup import VARIABLE, Emulated, read_setup


class TritonPythonModel:
    """Names of class and methods are Triton's."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        os.environ[VARIABLE] = parameters[VARIABLE]["string_value"]
        self.emulated = Emulated(read_setup(), args["model_name"])
        self.answer = np.zeros((1, 1), np.float32)

    def execute(self, requests: list[Any]) -> list[Any]:
        self.emulated.run(len(requests))
        return [triton.InferenceResponse([triton.Tensor("output", self.answer)]) for _ in requests]
