"""Router, frontend and a swapping backend on real links in one process: digits by their content."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("faiss")
from served import ROOT, wait_until

from fermata.clients.wire.open_inference_pb2 import ModelInferRequest
from fermata.deployments.backend.execution.runners.finite import FiniteRunner
from fermata.deployments.backend.execution.runners.runner import Runner
from fermata.deployments.backend.models.model_store import ModelStore
from fermata.deployments.backend.models.swapping import SwappingRunner
from fermata.deployments.backend.process import BackendProcess
from fermata.deployments.backend.settings import BackendSettings
from fermata.deployments.config.deployment import load_config
from fermata.deployments.config.processes.process_options import store_options
from fermata.deployments.config.resolve import router_config
from fermata.deployments.config.served.looks import peeks
from fermata.deployments.config.served.registry import registry
from fermata.deployments.frontend.process import FrontendProcess, node_name
from fermata.deployments.frontend.protocol.parsing import parse_request
from fermata.deployments.models.digits import held_out, load
from fermata.deployments.specs.frontend import FrontendOptions, ServerOptions
from fermata.foundation.precise_timer import precise_timer
from fermata.foundation.units import ms
from fermata.profiles.profile import from_table_ms
from fermata.router.links.heartbeat import HeartbeatThread
from fermata.router.links.messages import Result
from fermata.router.links.transport import LinkOptions, LinkServer
from fermata.router.live.driver import LiveRouter

pytestmark = pytest.mark.live

EACH = 100
GAP_S = 0.02


def swapping(runner: Runner) -> SwappingRunner | None:
    """The runner below the one that looks at outputs."""
    inner = runner.inner if isinstance(runner, FiniteRunner) else runner
    return inner if isinstance(inner, SwappingRunner) else None


@asynccontextmanager
async def served() -> AsyncIterator[tuple[FrontendProcess, dict[str, SwappingRunner]]]:
    config = load_config(ROOT / "deployments/sneakpeek.yaml")
    profiles = {}
    for variant in config.applications[0].variants:
        card = load(variant.model.removeprefix("digits:")).card
        known = from_table_ms(variant.name, [3.0] * 16, accuracy=card.accuracy, recall=card.recall)
        profiles[variant.name] = replace(known, load_ns=ms(20))
    plan = router_config(config, profiles)
    loop = asyncio.get_running_loop()
    router = LiveRouter(
        plan, 1, time.monotonic_ns, loop.call_soon, lambda call: precise_timer(loop, call)
    )
    options = LinkOptions()
    heartbeat = HeartbeatThread(options.beat_ns)
    links = LinkServer(router.hello, router, heartbeat, options)
    port = await links.start("127.0.0.1", 0)

    async def resolve() -> str:
        return f"127.0.0.1:{port}"

    store = ModelStore(store_options(config))
    runners = {name: await asyncio.to_thread(store.load, name) for name in store.specs}
    backend = BackendProcess(BackendSettings(1, kind="cpu", node=node_name()), runners, resolve)
    await backend.start()
    ports = ServerOptions(host="127.0.0.1", grpc_port=0, http_port=0, reuse_port=False)
    frontend = FrontendProcess(
        FrontendOptions(number=1, server=ports), registry(config), resolve, peeks=peeks(config)
    )
    await frontend.start()
    await asyncio.to_thread(
        wait_until, lambda: frontend.hub.router is not None and bool(router.fleet.backends), 20
    )
    try:
        yield (
            frontend,
            {name: inner for name, each in runners.items() if (inner := swapping(each))},
        )
    finally:
        await frontend.stop()
        await backend.stop()
        await links.stop("the test ends")
        router.stop()
        heartbeat.stop()


async def ask(frontend: FrontendProcess, image: np.ndarray) -> Result:
    # The machine that runs tests is small and busy: a second for each.
    request = ModelInferRequest(model_name="digits")
    request.inputs.add(name="input", datatype="FP32", shape=[64])
    request.raw_input_contents.append(image.astype(np.float32).tobytes())
    request.parameters["timeout"].int64_param = 1_000_000
    outcome = await frontend.hub.driver.infer(parse_request(request, frontend.hub.registry))
    assert isinstance(outcome, Result), outcome
    return outcome


def test_a_skewed_drifting_stream_is_answered_by_what_it_holds() -> None:
    images, labels = held_out()
    rng = np.random.default_rng(1)

    async def play() -> tuple[list[tuple[int, Result]], int, dict[str, object]]:
        async with served() as (frontend, runners):
            asked: list[tuple[int, asyncio.Task[Result]]] = []
            # Mostly zeros at first, mostly eights then: the easiest and the hardest of the ten.
            for frequent in (0, 8):
                for _ in range(EACH):
                    label = frequent if rng.random() < 0.8 else int(rng.integers(10))
                    image = images[rng.choice(np.flatnonzero(labels == label))]
                    asked.append((label, asyncio.create_task(ask(frontend, image))))
                    await asyncio.sleep(GAP_S)
            answers = [(label, await task) for label, task in asked]
            swaps = next(iter(runners.values())).space.swaps
            return answers, swaps, dict(frontend.status())

    answers, swaps, status = asyncio.run(play())
    right = [
        int(np.frombuffer(each.tensors[0][3], np.float32).argmax()) == label
        for label, each in answers
    ]
    assert np.mean(right) > 0.85
    # Every request was looked at; answers say how sure they are, unless the look came too late.
    assert status["peeked"] == 2 * EACH
    estimates = [each.estimate for _, each in answers if each.estimate >= 0]
    assert len(estimates) > EACH
    assert max(estimates) <= 1
    assert abs(np.mean(estimates) - np.mean(right)) < 0.1
    assert all((each.variant == "sneakpeek") == each.short_circuit for _, each in answers)
    # There is time for a model, so whoever is unsure gets one; eights are harder than zeros.
    ran = {each.variant for _, each in answers if not each.short_circuit}
    assert ran
    assert swaps >= len(ran)
    zeros = [each.estimate for label, each in answers if label == 0 and each.estimate >= 0]
    eights = [each.estimate for label, each in answers if label == 8 and each.estimate >= 0]
    assert np.mean(zeros) > np.mean(eights)
