"""Every method of the installed tritonclient, with sound and unsound arguments."""

import asyncio
import sys
from pathlib import Path

import pytest

from benchmarks.triton_client import Answer, answers

pytest.importorskip("tritonclient.grpc")

pytestmark = pytest.mark.live

METHODS_MIN = 19
"""So many at least have both of their clients, that of asyncio and the other one."""


def test_every_method_is_answered_as_triton_answers() -> None:
    async def play() -> list[Answer]:
        return [each async for each in answers(Path(sys.executable), "grpc")]

    found = asyncio.run(play())
    assert [str(each) for each in found if not each.right] == []
    for client in ("grpc", "grpc.aio"):
        for arguments in ("sound", "unsound"):
            asked = [each for each in found if (each.client, each.arguments) == (client, arguments)]
            assert len(asked) >= METHODS_MIN
