"""Several frontend processes behind one port: each answers, and together they count right."""

import grpc
import pytest

pytest.importorskip("ray")
from served import Server, wait_until

from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.parameters import parameter
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import RawTensor, add_input

pytestmark = pytest.mark.live

CONNECTIONS = 24
"""The kernel spreads them by a hash of their ports: that all fall on one of two is 2 in 2^24."""

COUNTER = 'fermata_requests_total{application="emulated"}'


def ask(channel: grpc.Channel) -> int:
    """One request over this connection; then how many its own frontend has answered."""
    stub = InferenceStub(channel)
    request = pb.ModelInferRequest(model_name="emulated")
    add_input(request, RawTensor("input", "UINT8", (20000,), bytes(20000)))
    request.parameters["timeout"].CopyFrom(parameter(5_000_000))
    stub.ModelInfer(request, timeout=10)
    (found,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="emulated")).model_stats
    return int(found.inference_count)


def test_both_processes_answer_and_their_counts_add_up(server: Server) -> None:
    assert len(server.status()["frontends"]) == 2

    def counted() -> int:
        (line,) = [each for each in server.page("metrics").splitlines() if each.startswith(COUNTER)]
        return int(float(line.split()[-1]))

    before = counted()
    # A channel of its own each: gRPC would put them all on one connection otherwise.
    options = (("grpc.use_local_subchannel_pool", 1),)
    target = f"127.0.0.1:{server.grpc_port}"
    channels = [grpc.insecure_channel(target, options) for _ in range(CONNECTIONS)]
    totals = [ask(channel) for channel in channels]
    # One process alone would have counted one more at each request.
    assert totals != list(range(totals[0], totals[0] + CONNECTIONS)), "one of them did it all"
    wait_until(lambda: counted() == before + CONNECTIONS, 10)
    for channel in channels:
        channel.close()
