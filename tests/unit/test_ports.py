"""Whether a port can be had, who holds it, and who may share it."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from benchmarks.ports import free_port
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.processes.endpoints import endpoints, with_free_ports
from fermata.deployments.frontend.protocol import listening
from fermata.deployments.frontend.protocol.listening import Listening
from fermata.foundation import ports
from fermata.foundation.errors import ConfigError
from fermata.foundation.ports import (
    Endpoint,
    check_free,
    grpc_endpoint,
    held,
    holder,
    listeners,
)


def listen(host: str, port: int, shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind((host, port))
    one.listen()
    return one


@contextmanager
def stranger(port: int, title: str = sys.executable) -> Iterator[int]:
    """Another process that listens there and would share the port."""
    code = (
        "import socket; one = socket.socket(); "
        "one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); "
        f"one.bind(('127.0.0.1', {port})); one.listen(); print(flush=True); input()"
    )
    pipe = subprocess.PIPE
    command = [title, "-c", code]
    with subprocess.Popen(command, executable=sys.executable, stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        # It ends the line once it listens.
        other.stdout.readline()
        yield other.pid
        other.communicate(b"\n")


def config(**frontend: Any) -> DeploymentConfig:
    variant = {"name": "v", "model": "emulated", "alpha_ms": 1, "beta_ms": 1}
    return read_config(
        {
            "applications": [{"name": "a", "slo_ms": 50, "variants": [variant]}],
            "frontend": {"grpc_port": free_port(), "http_port": free_port(), **frontend},
            "control": {"port": free_port()},
        }
    )


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "STRANGER_S", 0.1)
    monkeypatch.setattr(listening, "LOOK_S", 0.01)


def test_a_process_is_named_though_files_of_it_are_closed_meanwhile() -> None:
    # The list of its files is a file too: it has the lowest number that is free, and is closed
    # before the others are looked at.
    lower = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    endpoint = grpc_endpoint("127.0.0.1", free_port())
    with listen("127.0.0.1", endpoint.port, shared=False):
        for each in lower:
            os.close(each)
        with pytest.raises(ConfigError, match=rf"process {os.getpid()} \("):
            check_free(endpoint)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("other", ["127.0.0.1", "0.0.0.0", "::"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_port_that_somebody_listens_on_is_refused(host: str, other: str, shared: bool) -> None:
    endpoint = grpc_endpoint(host, free_port())
    check_free(endpoint)
    with listen(other, endpoint.port, shared), pytest.raises(ConfigError) as refused:
        check_free(endpoint)
    said = str(refused.value)
    assert said.startswith(
        f"frontend.grpc_port={endpoint.port}: {host}:{endpoint.port} is taken by"
    )
    assert said.endswith("end it or set another frontend.grpc_port")
    assert f"process {os.getpid()} (" in said
    check_free(endpoint)


def test_another_address_of_the_machine_is_another_place() -> None:
    port = free_port()
    with listen("127.0.0.2", port):
        check_free(grpc_endpoint("127.0.0.1", port))
        assert listeners(grpc_endpoint("127.0.0.1", port)) == []


def test_connections_that_linger_after_a_server_are_no_obstacle() -> None:
    port = free_port()
    with listen("127.0.0.1", port) as server:
        client = socket.create_connection(("127.0.0.1", port))
        # The side that closes first is the one that lingers.
        server.accept()[0].close()
    assert client.recv(1) == b""
    client.close()
    check_free(grpc_endpoint("127.0.0.1", port))


@pytest.mark.parametrize(
    ("host", "reason"), [("192.0.2.200", "Cannot assign"), ("no.such.host.invalid", "")]
)
def test_a_host_that_is_not_this_machine_is_refused(host: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be listened on .{reason}.*another control.host"):
        check_free(Endpoint("control", "port", host, 8000))


def test_the_process_of_a_socket_is_named_by_its_command() -> None:
    endpoint = grpc_endpoint("127.0.0.1", free_port())
    with stranger(endpoint.port) as pid:
        said = holder(listeners(endpoint))
    assert said.startswith(f"process {pid} (python")
    assert "-c import socket" in said


def test_a_worker_whose_cluster_is_gone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = grpc_endpoint("127.0.0.1", free_port())
    with ThreadPoolExecutor(1) as pool:
        with stranger(endpoint.port, "ray::ServeReplica:fermata:Frontend"):
            waiting = pool.submit(check_free, endpoint)
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
        waiting.result(5)
    monkeypatch.setattr(ports, "ENDING_S", 0)
    with (
        stranger(endpoint.port, "ray::ServeReplica:fermata:Frontend"),
        pytest.raises(ConfigError, match="is taken by process"),
    ):
        check_free(endpoint)


def test_a_second_server_is_refused_before_the_first_has_bound_anything() -> None:
    wanted = endpoints(config())
    with held(wanted):
        with pytest.raises(ConfigError, match="is claimed by another `fermata serve`"):
            held(wanted[2:]).__enter__()
        # Holding a port keeps nobody from binding it.
        with listen(wanted[0].host, wanted[0].port):
            pass
    with held(wanted):
        pass


@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_taken_port_of_three_is_named(index: int) -> None:
    wanted = endpoints(config())
    taken = wanted[index]
    with listen(taken.host, taken.port), pytest.raises(ConfigError, match=f"^{taken.name}="):
        held(wanted).__enter__()
    with held(wanted):
        pass


def test_two_servers_of_one_deployment_need_two_ports() -> None:
    same = config(grpc_port=23_456).model_copy()
    control = same.control.model_copy(update={"host": "0.0.0.0", "port": 23_456})
    same = same.model_copy(update={"control": control})
    with pytest.raises(ConfigError, match=r"is frontend\.grpc_port as well: set another control"):
        held(endpoints(same)).__enter__()
    with pytest.raises(ConfigError, match="grpc_port and http_port are both 9000"):
        config(grpc_port=9000, http_port=9000)
    config(grpc_port=0, http_port=0)
    tls = {"certificate_file": "a", "key_file": "b"}
    with pytest.raises(ConfigError, match="edge: native takes no tls"):
        config(edge="native", tls=tls)


def test_any_port_becomes_a_free_one_that_all_frontends_share() -> None:
    given = with_free_ports(config(grpc_port=0, http_port=0))
    one, two, _ = endpoints(given)
    assert 0 < one.port != two.port > 0
    with held(endpoints(given)):
        pass
    fixed = config()
    assert with_free_ports(fixed) == fixed
    with pytest.raises(ConfigError, match=r"frontend\.host"):
        with_free_ports(config(grpc_port=0, host="192.0.2.200"))


def test_frontends_of_one_deployment_share_a_port() -> None:
    async def work() -> None:
        endpoint = grpc_endpoint("127.0.0.1", free_port())
        with ExitStack() as stack:
            for _ in range(3):
                one = Listening("cluster/a", shared=True)
                stack.callback(one.close)
                await one.wait_for(endpoint)
                stack.enter_context(listen(endpoint.host, endpoint.port, shared=True))
                await one.mark(endpoint)

    asyncio.run(work())


@pytest.mark.parametrize("deployment", ["cluster/b", ""])
def test_others_do_not_share_it(deployment: str) -> None:
    async def work() -> None:
        endpoint = grpc_endpoint("127.0.0.1", free_port())
        first = Listening("cluster/a", shared=True)
        with listen(endpoint.host, endpoint.port, shared=True):
            await first.mark(endpoint)
            with pytest.raises(ConfigError, match="is taken by process"):
                await Listening(deployment, shared=True).wait_for(endpoint)
        first.close()
        await Listening(deployment, shared=True).wait_for(endpoint)

    asyncio.run(work())


def test_a_stranger_that_comes_in_at_the_same_time_is_seen() -> None:
    async def work() -> None:
        endpoint = grpc_endpoint("127.0.0.1", free_port())
        ours = Listening("cluster/a", shared=True)
        await ours.wait_for(endpoint)
        with (
            stranger(endpoint.port) as pid,
            listen(endpoint.host, endpoint.port, shared=True),
            pytest.raises(ConfigError, match=f"is taken by process {pid}"),
        ):
            await ours.mark(endpoint)
        ours.close()

    asyncio.run(work())


def test_a_frontend_waits_for_the_one_that_it_replaces() -> None:
    async def work() -> None:
        endpoint = grpc_endpoint("127.0.0.1", free_port())
        old, new = Listening("cluster/a", shared=False), Listening("cluster/a", shared=False)
        one = listen(endpoint.host, endpoint.port)
        await old.mark(endpoint)
        waiting = asyncio.ensure_future(new.wait_for(endpoint))
        # Longer than it would wait for a stranger.
        assert not (await asyncio.wait((waiting,), timeout=0.3))[0]
        one.close()
        await waiting
        old.close()

    asyncio.run(work())


def test_a_socket_that_takes_no_connections_any_more_is_lost() -> None:
    async def work() -> None:
        endpoint = grpc_endpoint("127.0.0.1", free_port())
        closed, silent = Listening("a", shared=False), Listening("a", shared=False)
        for each, end in ((closed, socket.socket.close), (silent, _shut)):
            with listen(endpoint.host, endpoint.port) as one:
                await each.mark(endpoint)
                assert len(each.sockets) == 1
                assert not each.is_lost()
                end(one)
                assert each.is_lost()
            each.close()

    asyncio.run(work())


def _shut(one: socket.socket) -> None:
    one.shutdown(socket.SHUT_RDWR)
