"""A pipeline as Triton's business logic script: calls the first stage, then the second with crops.

Decoupled, so that one instance has any number of queries under way, each a coroutine.
"""

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from benchmarks.peer_servers.fan_out import CROP_BYTES, crop_count
from benchmarks.peer_servers.setup import VARIABLE, read_setup

CALLS = 512
"""Calls of stages under way at most. Each has a thread of the loop's own pool, which by default is
as small as the machine."""


class RefusedError(Exception):
    """A stage did not run a request."""


class TritonPythonModel:
    """Names of class and methods are Triton's."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        os.environ[VARIABLE] = parameters[VARIABLE]["string_value"]
        setup = read_setup()
        self.first, self.second = setup.models
        self.options = setup.options
        self.answer = triton.Tensor("output", np.zeros(1, np.float32))
        self.pool = ThreadPoolExecutor(CALLS)

    async def execute(self, requests: list[Any]) -> None:
        asyncio.get_running_loop().set_default_executor(self.pool)
        await asyncio.gather(*(self._answer(each) for each in requests))

    async def _answer(self, request: Any) -> None:
        try:
            await self._query(request, time.monotonic_ns())
            answer = triton.InferenceResponse([self.answer])
        except RefusedError as error:
            answer = triton.InferenceResponse([], triton.TritonError(str(error)))
        request.get_response_sender().send(
            answer, flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        )

    async def _query(self, request: Any, started_ns: int) -> None:
        frame = triton.get_input_tensor_by_name(request, "input").as_numpy()
        await self._call(self.first.name, frame.reshape(1, -1), self._left_us(started_ns, 0))
        count, size = crop_count(self.options["crops_mean"]), self.second.batch_size_max
        if not self.options["together"]:
            size = 1
        # A request may have no more rows than a batch.
        rows = [min(size, count - start) for start in range(0, count, size)]
        left_us = self._left_us(started_ns, 1)
        crops = [np.zeros((each, CROP_BYTES), np.uint8) for each in rows]
        await asyncio.gather(*(self._call(self.second.name, each, left_us) for each in crops))

    def _left_us(self, started_ns: int, stage: int) -> int:
        """How long the query may still be queued; 0 for as long as the stage's policy says."""
        share = self.options["deadlines"][stage]
        if not share:
            return 0
        passed_us = (time.monotonic_ns() - started_ns) // 1000
        left_us = int(1e3 * share * self.options["slo_ms"]) - passed_us
        if left_us <= 0:
            raise RefusedError("too late for the next stage")
        return left_us

    async def _call(self, model: str, rows: Any, left_us: int) -> None:
        request = triton.InferenceRequest(
            model_name=model,
            requested_output_names=["output"],
            inputs=[triton.Tensor("input", rows)],
            timeout=left_us,
        )
        response = await request.async_exec()
        if response.has_error():
            raise RefusedError(response.error().message())
