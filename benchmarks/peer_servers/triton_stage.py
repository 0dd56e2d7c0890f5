"""One stage of a pipeline in Triton's Python backend: one instance is one process on one GPU."""

import json
import os
import re
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from benchmarks.peer_servers.fan_out import CROP_BYTES
from benchmarks.peer_servers.setup import VARIABLE, Emulated, read_setup


class TritonPythonModel:
    """Names of class and methods are Triton's."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        os.environ[VARIABLE] = parameters[VARIABLE]["string_value"]
        # The group's name says which GPU: a rate limiter hands out that one.
        found = re.search(r"gpu(\d+)", args["model_instance_name"])
        assert found is not None, args["model_instance_name"]
        self.emulated = Emulated(read_setup(), args["model_name"], int(found[1]))

    def execute(self, requests: list[Any]) -> list[Any]:
        rows = [triton.get_input_tensor_by_name(each, "input").shape()[0] for each in requests]
        self.emulated.run(sum(rows))
        return [
            triton.InferenceResponse(
                [triton.Tensor("output", np.zeros((count, CROP_BYTES), np.uint8))]
            )
            for count in rows
        ]
