"""A frontend that comes to share ports with another, as in every upgrade."""

import asyncio
from collections.abc import Iterator

import pytest
from stand_in import MODELS, Running, options

from benchmarks.ports import free_port
from fermata.deployments.frontend.process import FrontendProcess
from fermata.deployments.specs.frontend import FrontendOptions, ServerOptions, TableLimits
from fermata.deployments.specs.registry import Registry
from fermata.foundation.ports import grpc_endpoint, listeners
from fermata.foundation.units import ms, seconds

pytestmark = pytest.mark.live


def shared(number: int, wait_ns: int, ports: ServerOptions) -> FrontendOptions:
    return options(number=number, server=ports, table=TableLimits(router_wait_ns=wait_ns))


@pytest.fixture
def ports() -> ServerOptions:
    grpc_port = free_port()
    return ServerOptions(
        grpc_port=grpc_port, http_port=-1, reuse_port=True, deployment="one", drain_ns=ms(100)
    )


@pytest.fixture
def first(ports: ServerOptions) -> Iterator[Running]:
    """Alone it listens at once, whether there is a router or not."""
    running = Running(lambda: shared(1, seconds(3), ports))
    yield running
    running.close()


def listening(ports: ServerOptions) -> int:
    return len(listeners(grpc_endpoint(ports.host, ports.grpc_port)))


def test_it_takes_clients_once_it_has_a_router(first: Running, ports: ServerOptions) -> None:
    """Its share of the clients would be refused before, beside a frontend that serves."""

    async def run() -> None:
        may_link = asyncio.Event()

        async def resolve() -> str:
            await may_link.wait()
            return first.stand_in.server.address

        second = FrontendProcess(shared(2, seconds(30), ports), Registry.of(MODELS), resolve)
        starting = asyncio.ensure_future(second.start())
        await asyncio.wait([starting], timeout=0.5)
        assert not starting.done()
        assert listening(ports) == 1
        may_link.set()
        await starting
        assert second.hub.router is not None
        assert listening(ports) == 2
        await second.stop()

    asyncio.run(run())


def test_it_comes_without_a_router_after_a_while(first: Running, ports: ServerOptions) -> None:
    """The other may be the one that is cut off, and clients hear the reason from either."""

    async def run() -> None:
        async def resolve() -> str:
            await asyncio.Event().wait()
            raise AssertionError

        second = FrontendProcess(shared(2, ms(100), ports), Registry.of(MODELS), resolve)
        await asyncio.wait_for(second.start(), 20)
        assert second.hub.router is None
        assert listening(ports) == 2
        await second.stop()

    asyncio.run(run())
