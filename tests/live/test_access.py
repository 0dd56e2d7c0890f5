"""Tokens and limits at a real frontend, over gRPC and HTTP."""

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

pytest.importorskip("uvicorn")

from stand_in import Running, ask, jpeg, numbers, options, wait_for

from fermata.clients.access import Access
from fermata.clients.describe import describe
from fermata.clients.load.arrivals import single
from fermata.clients.load.run import run_load
from fermata.clients.load.sender import SenderOptions, Target
from fermata.clients.stream import FrameStream, StreamOptions
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire.errors import RefusedError
from fermata.clients.wire.service import InferenceStub
from fermata.clients.wire.tensors import from_array
from fermata.deployments.specs.frontend import StreamLimits, TenantSpec
from fermata.foundation.units import ms
from fermata.router.links.messages import FleetStatus, Shares

pytestmark = pytest.mark.live

CAMERAS, ROBOTS, BUSY = "cameras-" + "c" * 40, "robots-" + "r" * 160, "busy-" + "b" * 30
TENANTS = (
    TenantSpec("cameras", (CAMERAS,), frozenset({"sum", "picture"})),
    TenantSpec("robots", (ROBOTS,)),
    TenantSpec("busy", (BUSY,), rate_rps=1, burst=2),
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    system = Running(lambda: options(tenants=TENANTS, streams=StreamLimits(per_client_max=3)))
    yield system
    system.close()


@pytest.fixture(scope="module")
def channel(guarded: Running) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(guarded.target) as one:
        yield one


def stub(channel: grpc.Channel, token: str) -> InferenceStub:
    return InferenceStub(channel, (("authorization", f"Bearer {token}"),))


def refused(call: Any, *given: Any) -> tuple[str, str]:
    # A stream is refused when it is read.
    with pytest.raises(grpc.RpcError) as caught:
        list(call(*given))
    return caught.value.code().name, caught.value.details()


def test_nobody_without_a_token_gets_in(channel: grpc.Channel) -> None:
    nobody = InferenceStub(channel)
    for call, request in (
        (nobody.ModelInfer, ask("sum")),
        (nobody.ModelStreamInfer, iter([ask("sum")])),
        (nobody.ModelMetadata, pb.ModelMetadataRequest(name="sum")),
        (nobody.ModelReady, pb.ModelReadyRequest(name="sum")),
        (nobody.ModelStatistics, pb.ModelStatisticsRequest()),
        (nobody.ServerMetadata, pb.ServerMetadataRequest()),
        (nobody.RepositoryIndex, pb.RepositoryIndexRequest()),
        (nobody.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name="sum")),
        (stub(channel, "x" * 40).ModelInfer, ask("sum")),
    ):
        status, said = refused(call, request)
        assert status == "UNAUTHENTICATED", call
        assert "token" in said
        assert "\n" not in said
    # Probes have none.
    assert nobody.ServerLive(pb.ServerLiveRequest()).live
    assert nobody.ServerReady(pb.ServerReadyRequest()).ready


def test_a_denied_login_is_recorded_with_its_address_over_both_ways(
    guarded: Running, channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    denied = guarded.frontend.service.tenants.denied
    for call in (
        lambda: refused(stub(channel, "y" * 40).ModelInfer, ask("sum")),
        lambda: http(f"{guarded.url}/v2", "y" * 40),
    ):
        denied.counts.clear()
        with caplog.at_level("WARNING", "fermata"):
            call()
        (record,) = [each for each in caplog.records if each.message == "login denied"]
        assert record.__dict__["fields"]["address"] == "127.0.0.1"
        assert "yyyy" not in str(record.__dict__)
        caplog.clear()


def test_nothing_of_a_strangers_message_is_read(guarded: Running) -> None:
    """It is refused, or answered, by its headers: no message has to come, nor is one kept."""
    with grpc.insecure_channel(guarded.target) as one:
        for method, wanted in (
            ("ModelInfer", "UNAUTHENTICATED"),
            ("RepositoryModelLoad", "UNAUTHENTICATED"),
            ("Strange", "UNAUTHENTICATED"),
            ("ServerLive", "OK"),
            ("ServerReady", "OK"),
        ):
            call = one.stream_stream(f"/inference.GRPCInferenceService/{method}")
            # A client that opens a call and sends no message.
            begun = call(unsent(), timeout=5)
            with suppress(grpc.RpcError):
                list(begun)
            assert begun.code().name == wanted, method


def unsent() -> Iterator[bytes]:
    wait_for(lambda: False, 8)
    yield b""


def test_a_tenant_uses_its_own_models_and_hears_of_no_others(channel: grpc.Channel) -> None:
    cameras = stub(channel, CAMERAS)
    assert numbers(cameras.ModelInfer(ask("sum"))) == [6, 0, 3]
    for name in ("bytes", "bytes@1", "ghost", ""):
        for call, request in (
            (cameras.ModelInfer, ask(name)),
            (cameras.ModelMetadata, pb.ModelMetadataRequest(name=name)),
            (cameras.ModelReady, pb.ModelReadyRequest(name=name)),
            (cameras.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(model_name=name)),
        ):
            status, said = refused(call, request)
            assert status == "PERMISSION_DENIED"
            assert "letters" not in said
    (answer,) = cameras.ModelStreamInfer(iter([ask("bytes")]))
    assert answer.infer_response.parameters["status"].string_param == "PERMISSION_DENIED"
    index = cameras.RepositoryIndex(pb.RepositoryIndexRequest())
    assert {each.name for each in index.models} == {"sum", "picture"}
    stats = cameras.ModelStatistics(pb.ModelStatisticsRequest())
    assert {each.name for each in stats.model_stats} == {"sum", "picture"}
    place = pb.RepositoryModelLoadRequest(model_name="sum")
    status, said = refused(cameras.RepositoryModelLoad, place)
    assert (status, "operator" in said) == ("PERMISSION_DENIED", True)


def test_above_its_rate_a_tenant_is_refused_and_others_are_not(channel: grpc.Channel) -> None:
    answers = list(stub(channel, BUSY).ModelStreamInfer(iter([ask("sum")] * 10)))
    told = [each.infer_response.parameters for each in answers if each.error_message]
    assert len(told) >= 7
    assert told[0]["status"].string_param == "RESOURCE_EXHAUSTED"
    assert 0 < told[0]["retry_after_us"].int64_param <= 1_000_000
    status, said = refused(stub(channel, BUSY).ModelInfer, ask("sum"))
    assert (status, "is above its rate" in said) == ("RESOURCE_EXHAUSTED", True)
    assert numbers(stub(channel, ROBOTS).ModelInfer(ask("sum"))) == [6, 0, 3]


def test_a_rate_is_shared_with_other_frontends(guarded: Running) -> None:
    limit = guarded.frontend.hub.tenants.find(f"Bearer {BUSY}").limit
    assert limit is not None
    for message, gap_ms in (
        (FleetStatus(4, 1), 4000),
        (Shares({"busy": 0.8}), 1250),
        (FleetStatus(3, 1), 1250),
        (FleetStatus(1, 1), 1000),
    ):
        guarded.call(guarded.stand_in.tell(message))
        wait_for(lambda wanted=gap_ms: limit.gap_ns == ms(wanted))


def test_what_became_of_a_tenants_requests_is_counted(guarded: Running) -> None:
    told = {each.name: each.outcomes for each in guarded.frontend.hub.table.counts.tenants.values()}
    assert told["busy"]["good"] >= 2
    assert told["busy"]["rate"] >= 8
    assert told["cameras"]["denied"] > 0
    assert set(told) == {"cameras", "robots", "busy"}


def test_streams_of_one_tenant_are_counted(guarded: Running, channel: grpc.Channel) -> None:
    cameras = stub(channel, CAMERAS)
    calls = [cameras.ModelStreamInfer(idle()) for _ in range(3)]
    wait_for(lambda: guarded.frontend.service.stream_counts["cameras"] == 3)
    status, said = refused(cameras.ModelStreamInfer, iter([ask("sum")]))
    assert (status, "3 streams" in said) == ("RESOURCE_EXHAUSTED", True)
    (answer,) = stub(channel, ROBOTS).ModelStreamInfer(iter([ask("sum")]))
    assert numbers(answer.infer_response) == [6, 0, 3]
    for call in calls:
        call.cancel()
    wait_for(lambda: not guarded.frontend.service.stream_counts)


def idle() -> Iterator[pb.ModelInferRequest]:
    """A client that has nothing to say, and stays."""
    wait_for(lambda: False, 10)
    yield ask("sum")


def http(url: str, token: str = "", body: object = None) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_http_asks_for_the_same(guarded: Running) -> None:
    body = {"inputs": [{"name": "input", "shape": [4], "datatype": "FP32", "data": [0, 1, 2, 3]}]}
    infer = f"{guarded.url}/v2/models/sum/infer"
    assert http(infer, body=body)[0] == 401
    assert http(infer, "y" * 40, body)[1]["status"] == "UNAUTHENTICATED"
    status, answer = http(infer, ROBOTS, body)
    assert (status, answer["outputs"][0]["data"]) == (200, [6, 0, 3])
    for path in ("", "/ready", "/versions/1", "/versions/1/ready"):
        assert http(f"{guarded.url}/v2/models/bytes{path}", CAMERAS)[0] == 403
    assert http(f"{guarded.url}/v2/models/bytes/infer", CAMERAS, body)[0] == 403
    assert http(f"{guarded.url}/v2")[0] == 401
    busy = [http(infer, BUSY, body)[0] for _ in range(4)]
    assert busy[-1] == 429
    for health in ("live", "ready"):
        with urllib.request.urlopen(f"{guarded.url}/v2/health/{health}") as plain:
            assert plain.status == 200


def test_a_stream_without_a_token_always_hears_the_true_status(guarded: Running) -> None:
    """Also where its first frame is on its way when the refusal comes."""
    nobody = StreamOptions(slo_ns=2 * 10**9)
    heard = Counter(
        result.status
        for _ in range(40)
        for result in FrameStream(guarded.target, "picture", [jpeg()] * 2, nobody)
    )
    assert heard == {"UNAUTHENTICATED": 80}


def test_every_client_of_ours_takes_a_token(guarded: Running, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(ROBOTS + "\n")
    access = Access(token_file=str(path))
    with pytest.raises(RefusedError, match=r"UNAUTHENTICATED: .*no token"):
        describe(guarded.target, "sum")
    assert describe(guarded.target, "sum", access).shape == (1, 4)
    stream = FrameStream(
        guarded.target, "picture", [jpeg()] * 4, StreamOptions(slo_ns=2 * 10**9, access=access)
    )
    assert [each.status for each in stream] == ["OK"] * 4
    nobody = StreamOptions(slo_ns=2 * 10**9)
    results = list(FrameStream(guarded.target, "picture", [jpeg()] * 2, nobody))
    assert [each.status for each in results] == ["UNAUTHENTICATED"] * 2
    assert max(each.latency_ns for each in results) < 1.5e9
    tensor = from_array("input", np.arange(4, dtype=np.float32))
    for unary in (False, True):
        due = single(np.arange(20, dtype=np.int64) * 5_000_000)
        sent = run_load(
            SenderOptions(guarded.target, 2, unary, access),
            [Target("sum", tensor, 2 * 10**9)],
            due,
        )
        assert sent.outcomes[int(sent.outcome[0])] == "OK"
        assert set(sent.outcome.tolist()) == {int(sent.outcome[0])}
