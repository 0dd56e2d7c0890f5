"""CPU time of a crop in each role, and in a frontend with pixels that it cuts itself.

The first two figures are of one process, from a detector's result to the payloads of all crops;
links and queues are left out. The others are those of `pipelines_roles`, the least of some runs:
others on the same machine only add to them.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.figures import Figure

CROPS = 5
REPEATS, REPEATS_QUICK = 200, 20
RUNS = 3
PIXELS_MAX = 10_000_000
ARENA_BYTES = 64 << 20
SEED = 1_000_001


def cut_figures(quick: bool) -> Iterator[Figure]:
    here, passed = (_us(backends_cut, quick) for backends_cut in (False, True))
    yield Figure("frontend's CPU, decoded and cut there", here, "us/crop", 0)
    yield Figure("frontend's CPU, cut by backends", passed, "us/crop", here, at_most=True)
    yield from _role_figures(quick)


def _role_figures(quick: bool) -> Iterator[Figure]:
    # Not above: the backend's runners take a second to import.
    from benchmarks.pipelines_backend import backend_us
    from benchmarks.pipelines_gpu import BACKEND_US, ROUTER_US
    from benchmarks.pipelines_roles import frontend_us, router_us

    runs = 1 if quick else RUNS
    frontend = min(frontend_us(quick) for _ in range(runs))
    yield Figure("frontend's CPU, from query to answer", frontend, "us/crop", 0)
    router = min(router_us(quick) for _ in range(runs))
    yield Figure("router's CPU, detection included", router, "us/crop", ROUTER_US, at_most=True)
    backend = min(backend_us(quick) for _ in range(runs))
    name = "backend's CPU, without a device"
    yield Figure(name, backend, "us/crop", BACKEND_US, at_most=True)


def _us(backends_cut: bool, quick: bool) -> float:
    """CPU time of a crop, all threads of this process together."""
    from benchmarks.pipelines_gpu_scene import NAME, Setting, jpegs, sections
    from fermata.deployments.config.deployment import read_config
    from fermata.deployments.config.served.registry import registry
    from fermata.deployments.frontend.inputs.request_input import RequestInput
    from fermata.deployments.frontend.memory.arena import Arena
    from fermata.deployments.frontend.requests.queries.parts import StageResult
    from fermata.deployments.frontend.requests.queries.transforms import make_inputs

    model, _ = registry(read_config(sections(Setting.on("cpu", "gpu")))).known(NAME)
    assert model.pipeline is not None
    first, second = model.pipeline.stages
    given = [
        RequestInput(first.model, tensor, encoded=True, batched=False).left_encoded()
        for tensor in jpegs()
    ]
    repeats = REPEATS_QUICK if quick else REPEATS
    results = [_result(number) for number in range(repeats)]
    arena = Arena(ARENA_BYTES)
    spent_s = 0.0
    try:
        # The first half warms up.
        for number in range(2 * repeats):
            before_s = time.process_time()
            frame, result = given[number % len(given)], results[number % repeats]
            told = first.name, first.model, frame, result, PIXELS_MAX, backends_cut
            payloads = [
                _placed(arena, each.given, rid)
                for rid, each in enumerate(make_inputs(StageResult(*told), second))
            ]
            assert len(payloads) == CROPS
            spent_s += (time.process_time() - before_s) * (number >= repeats)
            for payload in payloads:
                arena.free(payload)
    finally:
        arena.close()
    return 1e6 * spent_s / (CROPS * repeats)


def _placed(arena: Any, given: Any, rid: int) -> Any:
    """The payload of an input, as the request driver makes it."""
    if not given.encoded:
        return given.mark(arena.place(rid, given.tensor.datatype, given.shape, given.data))
    offset, view = arena.take(given.payload_bytes())
    given.write_payload(view, PIXELS_MAX)
    spec = given.payload_spec()
    payload = arena.written(rid, spec.datatype, spec.shape, offset, view)
    view.release()
    return payload


def _result(number: int) -> Any:
    """Boxes of a detector, drawn."""
    from fermata.router.links.messages import Result

    rng = np.random.default_rng(SEED + number)
    return Result(number, "tiny", 1, 0, 0, result_tensors(rng, CROPS))


def result_tensors(rng: np.random.Generator, crops: int) -> Any:
    """So many boxes as a detector's outputs."""
    from fermata.clients.wire.tensors import from_array

    corner = rng.uniform((0, 0), (250, 120), (crops, 2))
    size = rng.uniform(20, 110, (crops, 2))
    columns: dict[str, np.ndarray] = {
        "boxes": np.concatenate((corner, corner + size), axis=1).astype(np.float32),
        "scores": rng.uniform(0.3, 0.9, crops).astype(np.float32),
        "classes": rng.integers(0, 80, crops),
    }
    tensors = (from_array(name, array) for name, array in columns.items())
    return tuple((each.name, each.datatype, each.shape, bytes(each.data)) for each in tensors)
