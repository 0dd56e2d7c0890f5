"""Large JSON, read by a process aside.

Python reads JSON with the interpreter's lock held: sixteen megabytes stop every other request of
the process for a second, in whatever thread. `python -m ...json_process` reads bodies from its
input, one after the other, and writes the messages that they hold.
"""

import asyncio
import os
import struct
import sys
from contextlib import suppress
from typing import BinaryIO

import msgspec

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import BadRequestError
from fermata.deployments.frontend.protocol.json_tensors import read_request
from fermata.foundation.errors import ServingError

LENGTH = struct.Struct(">I")
NICENESS = 5
"""Small requests go first."""


class Body(msgspec.Struct, array_like=True):
    """A body to read."""

    model: str
    version: str
    header_bytes: int
    data: bytes


class Reading(msgspec.Struct, array_like=True):
    """The message in a body, or why it is none."""

    message: bytes = b""
    error: str = ""


class JsonProcessError(ServingError):
    """The process aside has ended, or does not answer."""

    grpc_status = "UNAVAILABLE"


class JsonProcess:
    """Has bodies read one at a time. The process is started when the first one comes, and anew
    where it has died."""

    def __init__(self, answer_s_max: float = 30.0) -> None:
        self.answer_s_max = answer_s_max
        self.process: asyncio.subprocess.Process | None = None
        self.turn = asyncio.Lock()

    async def read(
        self, model: str, version: str, data: bytes, header_bytes: int
    ) -> pb.ModelInferRequest:
        """The message in a body; raises BadRequestError."""
        body = msgspec.msgpack.encode(Body(model, version, header_bytes, data))
        async with self.turn:
            reading = await self._try(body) or await self._try(body)
        if reading is None:
            raise JsonProcessError("the body could not be read: try again")
        if reading.error:
            raise BadRequestError(reading.error)
        return pb.ModelInferRequest.FromString(reading.message)

    async def _try(self, body: bytes) -> Reading | None:
        """Read a body; None where the process has died over it, or before it."""
        try:
            async with asyncio.timeout(self.answer_s_max):
                return await self._ask(body)
        except (OSError, EOFError, TimeoutError):
            await self.close()
            return None
        except asyncio.CancelledError:
            # Its next answer would be to a question that nobody has any more.
            await self.close()
            raise

    async def _ask(self, body: bytes) -> Reading:
        process = self.process
        if process is None or process.returncode is not None:
            await self.close()
            process = self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                __spec__.name if __spec__ is not None else __name__,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(LENGTH.pack(len(body)))
        process.stdin.write(body)
        await process.stdin.drain()
        size: int = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))[0]
        return msgspec.msgpack.decode(await process.stdout.readexactly(size), type=Reading)

    async def close(self) -> None:
        """End the process; a later body starts another."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        # Its pipes are read to their end, and closed with it.
        await process.communicate()


def answer(body: Body) -> Reading:
    """Read a body in the process of its own."""
    try:
        message = read_request(body.model, body.version, body.data, body.header_bytes)
    except BadRequestError as error:
        return Reading(error=str(error))
    return Reading(message.SerializeToString())


def main(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer until the input ends, which it does with the process that asks."""
    os.nice(NICENESS)
    while head := source.read(LENGTH.size):
        body = msgspec.msgpack.decode(source.read(LENGTH.unpack(head)[0]), type=Body)
        reading = msgspec.msgpack.encode(answer(body))
        sink.write(LENGTH.pack(len(reading)) + reading)
        sink.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
