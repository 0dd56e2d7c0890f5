"""Every method of a stock tritonclient, called once with sound and once with unsound arguments.

`python triton_calls.py GRPC_PORT HTTP_PORT [grpc] [http]` needs numpy and tritonclient alone, of
any environment. It prints a line of JSON for each call: client, method, arguments, answer and
whether that is what Triton's protocol documents say.
"""

import asyncio
import inspect
import json
import queue
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

WAIT_S = 60.0
HTTP = {
    "INVALID_ARGUMENT": "400",
    "NOT_FOUND": "404",
    "FAILED_PRECONDITION": "412",
    "UNIMPLEMENTED": "501",
}
"""Statuses of HTTP for those of gRPC."""
ASIDE = ("cuda_shared_memory", "trace_settings", "log_settings")
"""Parts of method names of what is not compared."""
KEY = "/fermata_triton_calls"
SHAPE = (2, 4)
REGION_BYTES = 128


class Side:
    """One client and what calls need to know of it."""

    def __init__(self, kind: str, is_aio: bool, url: str) -> None:
        self.kind = kind
        self.is_aio = is_aio
        self.name = f"{kind}.aio" if is_aio else kind
        self.module: Any = import_module(f"tritonclient.{kind}")
        self.utils: Any = import_module("tritonclient.utils")
        source: Any = import_module(f"tritonclient.{kind}.aio") if is_aio else self.module
        self.maker: Any = source.InferenceServerClient
        self.url = url
        self.client: Any = self.maker(url)

    async def call(self, method: str, *given: Any, **named: Any) -> Any:
        found = getattr(self.client, method)(*given, **named)
        return await found if inspect.isawaitable(found) else found

    async def refused(self, code: str, method: str, *given: Any, **named: Any) -> str:
        """The refusal of a call, which must have this status, and one line that says why."""
        try:
            found = await self.call(method, *given, **named)
        except self.utils.InferenceServerException as error:
            return self.checked(code, error)
        raise AssertionError(f"answered with {found!r}")

    def checked(self, code: str, error: Any) -> str:
        """An error, which must have this status; any for an empty one, which clients raise."""
        told = f"{error.status() or ''} {error.message()}".strip()
        status = str(error.status() or "")
        if code:
            wanted = f"StatusCode.{code}" if self.kind == "grpc" else HTTP[code]
            assert status == wanted, f"wanted {wanted}: {told}"
        assert error.message(), f"no reason: {told}"
        assert "\n" not in error.message(), f"several lines: {told}"
        return told

    def inputs(self, name: str = "input", shape: tuple[int, ...] = SHAPE) -> list[Any]:
        tensor = self.module.InferInput(name, list(shape), "FP32")
        tensor.set_data_from_numpy(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
        return [tensor]

    def is_sum(self, result: Any) -> None:
        """Check an answer to `inputs`."""
        found = result.as_numpy("output")
        assert found.tolist() == [[6.0, 0.0, 3.0], [22.0, 4.0, 7.0]], found


Call = Callable[[Side], Awaitable[str]]


def json_of(side: Side) -> dict[str, Any]:
    return {"as_json": True} if side.kind == "grpc" else {}


def extra_of(side: Side) -> dict[str, Any]:
    """Options that no server knows, and none may stumble over."""
    return {"headers": {"x-nothing": "1"}} | (
        {} if side.kind == "grpc" else {"query_params": {"nothing": "1"}}
    )


# Health and description


async def sound_is_server_live(side: Side) -> str:
    assert await side.call("is_server_live") is True
    return "True"


async def unsound_is_server_live(side: Side) -> str:
    assert await side.call("is_server_live", **extra_of(side)) is True
    return "True, with options that nobody knows"


async def sound_is_server_ready(side: Side) -> str:
    assert await side.call("is_server_ready") is True
    return "True"


async def unsound_is_server_ready(side: Side) -> str:
    assert await side.call("is_server_ready", **extra_of(side)) is True
    return "True, with options that nobody knows"


async def sound_is_model_ready(side: Side) -> str:
    assert await side.call("is_model_ready", "sum") is True
    assert await side.call("is_model_ready", "sum", "1") is True
    return "True"


async def unsound_is_model_ready(side: Side) -> str:
    assert await side.call("is_model_ready", "nothing") is False
    assert await side.call("is_model_ready", "sum", "9") is False
    return "False"


async def sound_get_server_metadata(side: Side) -> str:
    found = await side.call("get_server_metadata", **json_of(side))
    assert {"name", "version", "extensions"} <= found.keys()
    assert {"model_repository", "statistics"} <= {*found["extensions"]}
    return f"{found['name']} {found['version']}"


async def unsound_get_server_metadata(side: Side) -> str:
    found = await side.call("get_server_metadata", **extra_of(side))
    return f"answered, with options that nobody knows: {type(found).__name__}"


async def sound_get_model_metadata(side: Side) -> str:
    found = await side.call("get_model_metadata", "sum", "1", **json_of(side))
    assert found["name"] == "sum"
    assert found["versions"] == ["1"]
    (given,) = found["inputs"]
    assert (given["name"], given["datatype"]) == ("input", "FP32")
    assert [int(size) for size in given["shape"]] == [-1, 4]
    return str(given)


async def unsound_get_model_metadata(side: Side) -> str:
    await side.refused("NOT_FOUND", "get_model_metadata", "sum", "9")
    return await side.refused("NOT_FOUND", "get_model_metadata", "nothing")


async def sound_get_model_config(side: Side) -> str:
    found = await side.call("get_model_config", "sum", **json_of(side))
    config = found["config"] if side.kind == "grpc" else found
    assert config["name"] == "sum"
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    return f"{config['name']}, {len(config['input'])} input"


async def unsound_get_model_config(side: Side) -> str:
    await side.refused("NOT_FOUND", "get_model_config", "sum", "9")
    return await side.refused("NOT_FOUND", "get_model_config", "nothing")


async def sound_get_inference_statistics(side: Side) -> str:
    await side.call("infer", "sum", side.inputs())
    found = await side.call("get_inference_statistics", "sum", "1", **json_of(side))
    (one,) = found["model_stats"]
    assert int(one["inference_count"]) > 0
    assert int(one["inference_stats"]["success"]["count"]) > 0
    every = await side.call("get_inference_statistics", **json_of(side))
    assert len(every["model_stats"]) > 1
    return f"{one['inference_count']} inferences"


async def unsound_get_inference_statistics(side: Side) -> str:
    await side.refused("NOT_FOUND", "get_inference_statistics", "sum", "9")
    return await side.refused("NOT_FOUND", "get_inference_statistics", "nothing")


# Models of the repository


async def sound_get_model_repository_index(side: Side) -> str:
    found = await side.call("get_model_repository_index", **json_of(side))
    models = found["models"] if side.kind == "grpc" else found
    states = {each["name"]: each.get("state") for each in models}
    assert states["sum"] == "READY"
    assert states["later"] == "UNAVAILABLE"
    return str(states)


async def unsound_get_model_repository_index(side: Side) -> str:
    found = await side.call("get_model_repository_index", **extra_of(side))
    return f"answered, with options that nobody knows: {type(found).__name__}"


async def sound_load_model(side: Side) -> str:
    await side.call("load_model", "later")
    assert await side.call("is_model_ready", "later")
    await side.call("unload_model", "later")
    return "ready once it returned"


async def unsound_load_model(side: Side) -> str:
    await side.refused("INVALID_ARGUMENT", "load_model", "later", config="{}")
    await side.refused("FAILED_PRECONDITION", "load_model", "broken")
    return await side.refused("NOT_FOUND", "load_model", "nothing")


async def sound_unload_model(side: Side) -> str:
    await side.call("load_model", "later")
    await side.call("unload_model", "later", unload_dependents=True)
    assert not await side.call("is_model_ready", "later")
    await side.refused("", "infer", "later", side.inputs())
    return "not ready any more"


async def unsound_unload_model(side: Side) -> str:
    return await side.refused("NOT_FOUND", "unload_model", "nothing")


# Shared memory


class SharedRegion:
    """Shared memory of this process, registered for a while."""

    def __init__(self, side: Side) -> None:
        self.side = side

    async def __aenter__(self) -> memoryview:
        # Not with the client's own tools: some of its versions lack what these need.
        self.memory = SharedMemory(KEY.lstrip("/"), create=True, size=REGION_BYTES)
        await self.side.call("register_system_shared_memory", "region", KEY, REGION_BYTES)
        buffer = self.memory.buf
        assert buffer is not None
        return buffer

    async def __aexit__(self, *about: object) -> None:
        await self.side.call("unregister_system_shared_memory")
        self.memory.close()
        self.memory.unlink()


def regions(side: Side, found: Any) -> list[str]:
    if side.kind == "grpc":
        return sorted(found.get("regions", {}))
    return sorted(each["name"] for each in found)


async def sound_register_system_shared_memory(side: Side) -> str:
    data = np.arange(8, dtype=np.float32).reshape(SHAPE)
    async with SharedRegion(side) as memory:
        memory[: data.nbytes] = data.tobytes()
        (tensor,) = side.inputs()
        tensor.set_shared_memory("region", data.nbytes)
        output = side.module.InferRequestedOutput("output")
        output.set_shared_memory("region", 24, offset=data.nbytes)
        result = await side.call("infer", "sum", [tensor], outputs=[output])
        got = np.frombuffer(bytes(memory[data.nbytes : data.nbytes + 24]), np.float32)
        assert got.tolist() == [6.0, 0.0, 3.0, 22.0, 4.0, 7.0], got
        assert result.get_output("output") is not None
    return "input and output of a request lay there"


async def unsound_register_system_shared_memory(side: Side) -> str:
    async with SharedRegion(side):
        call = "register_system_shared_memory"
        await side.refused("INVALID_ARGUMENT", call, "region", KEY, 8)
        await side.refused("INVALID_ARGUMENT", call, "more", KEY, 1 << 30)
        await side.refused("INVALID_ARGUMENT", call, "far", KEY, 8, offset=1 << 30)
        return await side.refused("INVALID_ARGUMENT", call, "none", "/no_such_key", 8)


async def sound_get_system_shared_memory_status(side: Side) -> str:
    async with SharedRegion(side):
        found = await side.call("get_system_shared_memory_status", "region", **json_of(side))
        assert regions(side, found) == ["region"]
    found = await side.call("get_system_shared_memory_status", **json_of(side))
    assert regions(side, found) == []
    return "the region, and none once it was unregistered"


async def unsound_get_system_shared_memory_status(side: Side) -> str:
    return await side.refused("INVALID_ARGUMENT", "get_system_shared_memory_status", "nothing")


async def sound_unregister_system_shared_memory(side: Side) -> str:
    async with SharedRegion(side):
        await side.call("unregister_system_shared_memory", "region")
        found = await side.call("get_system_shared_memory_status", **json_of(side))
        assert regions(side, found) == []
    return "unregistered"


async def unsound_unregister_system_shared_memory(side: Side) -> str:
    # No mistake to Triton: there is nothing to undo.
    await side.call("unregister_system_shared_memory", "nothing")
    return "nothing to do"


# Inference


async def sound_infer(side: Side) -> str:
    given = {"request_id": "7", "priority": 1, "timeout": 50_000_000, "parameters": {"mine": 3}}
    result = await side.call("infer", "sum", side.inputs(), "1", **given)
    side.is_sum(result)
    response = result.get_response()
    assert (response.id if side.kind == "grpc" else response["id"]) == "7"
    classes = side.module.InferRequestedOutput("output", class_count=2)
    result = await side.call("infer", "sum", side.inputs(), outputs=[classes])
    assert result.as_numpy("output").shape == (2, 2)
    if side.kind == "grpc":
        result = await side.call("infer", "sum", side.inputs(), compression_algorithm="gzip")
    else:
        plain = side.module.InferRequestedOutput("output", binary_data=False)
        packed = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"}
        result = await side.call("infer", "sum", side.inputs(), outputs=[plain], **packed)
    side.is_sum(result)
    for key in (5, "by text"):
        for at in range(3):
            steps = {"sequence_id": key, "sequence_start": at == 0, "sequence_end": at == 2}
            step = await side.call("infer", "kept", numbers(side, at + 1), **steps)
        assert step.as_numpy("total").tolist() == [[31 * (31 * 1 + 2) + 3]]
    return "the sums, also in classes, compressed and in a sequence"


def numbers(side: Side, value: int) -> list[Any]:
    tensor = side.module.InferInput("x", [1, 1], "INT64")
    tensor.set_data_from_numpy(np.array([[value]], np.int64))
    return [tensor]


async def unsound_infer(side: Side) -> str:
    await side.refused("NOT_FOUND", "infer", "nothing", side.inputs())
    await side.refused("NOT_FOUND", "infer", "sum", side.inputs(), "9")
    await side.refused("INVALID_ARGUMENT", "infer", "sum", side.inputs("other"))
    await side.refused("INVALID_ARGUMENT", "infer", "sum", side.inputs(shape=(2, 5)))
    await side.refused("INVALID_ARGUMENT", "infer", "sum", [])
    absent = [side.module.InferRequestedOutput("nothing")]
    await side.refused("INVALID_ARGUMENT", "infer", "sum", side.inputs(), outputs=absent)
    await side.refused("", "infer", "kept", numbers(side, 1), sequence_id=99)
    if side.kind == "grpc":
        late = {"client_timeout": 1e-6}
        await side.refused("DEADLINE_EXCEEDED", "infer", "sum", side.inputs(), **late)
    (tensor,) = side.inputs()
    tensor.set_shared_memory("nothing", 32)
    return await side.refused("INVALID_ARGUMENT", "infer", "sum", [tensor])


async def asynchronous(side: Side, model: str, inputs: list[Any]) -> Any:
    """The answer of `async_infer`, or its error."""
    if side.kind == "http":
        asked = side.client.async_infer(model, inputs)
        try:
            return asked.get_result()
        except side.utils.InferenceServerException as error:
            return error
    answers: queue.Queue[Any] = queue.Queue()
    side.client.async_infer(model, inputs, lambda result, error: answers.put(error or result))
    return await asyncio.to_thread(answers.get, timeout=WAIT_S)


async def sound_async_infer(side: Side) -> str:
    side.is_sum(await asynchronous(side, "sum", side.inputs()))
    return "the sums"


async def unsound_async_infer(side: Side) -> str:
    side.checked("NOT_FOUND", await asynchronous(side, "nothing", side.inputs()))
    answer = await asynchronous(side, "sum", side.inputs("other"))
    return side.checked("INVALID_ARGUMENT", answer)


# Streams


async def streamed(side: Side, model: str, inputs: list[Any], **named: Any) -> Any:
    """The first answer of a stream, or its error."""
    answers: queue.Queue[Any] = queue.Queue()
    side.client.start_stream(lambda result, error: answers.put(error or result))
    try:
        side.client.async_stream_infer(model, inputs, **named)
        return await asyncio.to_thread(answers.get, timeout=WAIT_S)
    finally:
        side.client.stop_stream()


async def sound_start_stream(side: Side) -> str:
    side.is_sum(await streamed(side, "sum", side.inputs()))
    return "the sums"


async def unsound_start_stream(side: Side) -> str:
    side.client.start_stream(print)
    try:
        return await side.refused("", "start_stream", print)
    finally:
        side.client.stop_stream()


async def sound_async_stream_infer(side: Side) -> str:
    given = {"request_id": "9", "enable_empty_final_response": True, "parameters": {"mine": True}}
    found = await streamed(side, "sum", side.inputs(), **given)
    side.is_sum(found)
    assert found.get_response().id == "9"
    assert found.get_response().parameters["triton_final_response"].bool_param
    return "the sums"


async def unsound_async_stream_infer(side: Side) -> str:
    await side.refused("", "async_stream_infer", "sum", side.inputs())
    side.checked("", await streamed(side, "sum", side.inputs("other")))
    return side.checked("", await streamed(side, "nothing", side.inputs()))


async def sound_stop_stream(side: Side) -> str:
    side.client.start_stream(print)
    side.client.stop_stream()
    return "ended"


async def unsound_stop_stream(side: Side) -> str:
    side.client.stop_stream()
    return "nothing to do"


async def iterated(side: Side, *steps: dict[str, Any]) -> list[Any]:
    async def given() -> AsyncIterator[dict[str, Any]]:
        for step in steps:
            yield step

    return [error or result async for result, error in side.client.stream_infer(given())]


async def sound_stream_infer(side: Side) -> str:
    step = {"model_name": "sum", "inputs": side.inputs()}
    for result in await iterated(side, dict(step), dict(step)):
        side.is_sum(result)
    return "the sums"


async def unsound_stream_infer(side: Side) -> str:
    step = {"model_name": "sum", "inputs": side.inputs()}
    bad, good = await iterated(side, {**step, "inputs": side.inputs("other")}, dict(step))
    side.is_sum(good)
    return side.checked("", bad)


# What clients do by themselves


async def sound_generate_request_body(side: Side) -> str:
    body, length = side.client.generate_request_body(side.inputs())
    assert json.loads(body[:length])["inputs"][0]["name"] == "input"
    return f"{len(body)} bytes"


async def unsound_generate_request_body(side: Side) -> str:
    given = {"priority": 0, "parameters": {"priority": 1}}
    return await side.refused("", "generate_request_body", side.inputs(), **given)


async def sound_parse_response_body(side: Side) -> str:
    result = await side.call("infer", "sum", side.inputs())
    body = json.dumps(result.get_response()).encode()
    assert side.client.parse_response_body(body).get_response()["model_name"] == "sum"
    return "the answer"


async def unsound_parse_response_body(side: Side) -> str:
    try:
        side.client.parse_response_body(b"nothing")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was parsed")


async def sound_register_plugin(side: Side) -> str:
    plugin: Any = import_module(f"tritonclient.{side.kind}.auth").BasicAuth("someone", "secret")
    side.client.register_plugin(plugin)
    assert side.client.plugin() is plugin
    side.is_sum(await side.call("infer", "sum", side.inputs()))
    side.client.unregister_plugin()
    return "its header does not disturb"


async def unsound_register_plugin(side: Side) -> str:
    side.client.register_plugin(lambda request: None)
    told = await side.refused("", "register_plugin", lambda request: None)
    side.client.unregister_plugin()
    return told


async def sound_plugin(side: Side) -> str:
    assert side.client.plugin() is None
    return "None"


unsound_plugin = sound_plugin


async def sound_unregister_plugin(side: Side) -> str:
    side.client.register_plugin(lambda request: None)
    side.client.unregister_plugin()
    return "none"


async def unsound_unregister_plugin(side: Side) -> str:
    return await side.refused("", "unregister_plugin")


async def sound_close(side: Side) -> str:
    found = side.client.close()
    if inspect.isawaitable(found):
        await found
    return "closed"


async def unsound_close(side: Side) -> str:
    """A client that is closed asks nothing more."""
    try:
        await side.call("is_server_live")
    except Exception as error:
        return type(error).__name__
    finally:
        side.client = side.maker(side.url)
    return "opened anew"


def calls(arguments: str) -> dict[str, Call]:
    """The calls above by method, those with sound arguments or those with unsound ones."""
    prefix = f"{arguments}_"
    return {
        name.removeprefix(prefix): call
        for name, call in globals().items()
        if name.startswith(prefix)
    }


def methods(side: Side) -> list[str]:
    """Every public method of a client; the end comes last."""
    found = [
        name
        for name, _ in inspect.getmembers(side.maker, callable)
        if not name.startswith("_") and not any(part in name for part in ASIDE)
    ]
    return sorted(found, key=lambda name: (name == "close", name))


async def play(side: Side) -> None:
    for method in methods(side):
        for arguments in ("sound", "unsound"):
            try:
                async with asyncio.timeout(WAIT_S):
                    told, right = await calls(arguments)[method](side), True
            # Whatever goes wrong is what this is about.
            except Exception as error:
                told, right = f"{type(error).__name__}: {error}", False
            row = {"client": side.name, "method": method, "arguments": arguments}
            print(json.dumps({**row, "answer": told[:300], "right": right}), flush=True)
    found = side.client.close()
    if inspect.isawaitable(found):
        await found


def main(grpc_port: str, http_port: str, *kinds: str) -> None:
    ports = {"grpc": grpc_port, "http": http_port}
    for kind in kinds or ports:
        for is_aio in (False, True):

            async def start(kind: str = kind, is_aio: bool = is_aio) -> None:
                await play(Side(kind, is_aio, f"127.0.0.1:{ports[kind]}"))

            asyncio.run(start())


if __name__ == "__main__":
    main(*sys.argv[1:])
