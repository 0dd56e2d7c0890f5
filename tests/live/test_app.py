"""The whole system as a user starts it: `fermata serve`, a load, Ctrl-C, and nothing left."""

import json
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("ray")
from served import ROOT, Server, descendants, get, load, wait_until

from fermata.router.links.closing import CloseCode
from fermata.router.links.handshake import CONNECTOR, NONCE_BYTES, prove
from fermata.router.links.messages import PROTOCOL, Challenge, Goodbye, Hello
from fermata.router.links.session import encode

pytestmark = pytest.mark.live


def test_every_request_is_answered_once(server: Server) -> None:
    result = load(server, "emulated", rate=200, seconds=4)
    assert result["lost"] == result["duplicates"] == result["strangers"] == 0
    # The machine that runs tests is small and busy; most are in time all the same.
    assert result["good"] > 0.8 * result["requests"]


def test_the_router_counts_what_it_served(server: Server) -> None:
    load(server, "emulated", rate=50, seconds=1)
    counts = server.status()["applications"]["emulated"]
    assert counts["requests"] == counts["good"] + counts["late"] + sum(counts["dropped"].values())
    text = server.page("metrics")
    assert f'fermata_requests_total{{application="emulated"}} {counts["requests"]}' in text


def test_rest_answers_too(server: Server) -> None:
    described = json.loads(get(f"http://127.0.0.1:{server.http_port}/v2/models/emulated"))
    assert described["inputs"][0]["datatype"] == "UINT8"
    tensor = {"name": "input", "datatype": "UINT8", "shape": [1, 20000], "data": [7] * 20000}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 2_000_000}}).encode()
    url = f"http://127.0.0.1:{server.http_port}/v2/models/emulated/infer"
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        parameters = json.loads(answer.read())["parameters"]
    assert parameters["variant"] == "emulated-1"


def listening(pids: set[int]) -> set[int]:
    """Ports on which these processes listen."""
    inodes: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                inodes[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    found = set()
    for pid in pids:
        with suppress(OSError):
            links = [each.readlink().name for each in Path(f"/proc/{pid}/fd").iterdir()]
            found |= {inodes[each] for each in links if each in inodes}
    return found


def answer(port: int, data: bytes) -> bytes:
    """What is said there to this, and nothing more."""
    with socket.create_connection(("127.0.0.1", port), 5) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(5)
        heard = b""
        with suppress(OSError):
            while more := stranger.recv(1 << 16):
                heard += more
        return heard


def test_no_stray_word_ends_a_process_or_outlives_it(server: Server) -> None:
    before = server.status()
    ours = {
        pid
        for pid in descendants(server.process.pid)
        if any(each in process_name(pid) for each in ("Frontend", "RouterActor"))
    }
    ports = listening(ours) - {server.grpc_port, server.http_port}
    greeted = 0
    for port in sorted(ports):
        for role in ("frontend", "backend", "standby", "router"):
            hello = Hello(PROTOCOL, role, before["frontends"][0], 2**62, nonce=bytes(16))
            heard = answer(port, encode([hello])[0])
            if heard[4:7] == b"\x91\x92\x05":
                greeted += 1
                assert len(heard) == 4 + 3 + 2 + NONCE_BYTES, "a nonce, and not a word more"
                assert guess(port, hello).code is CloseCode.UNPROVEN
            answer(port, encode([hello, Goodbye("stale", CloseCode.STALE)])[0])
    # One router, two frontends.
    assert greeted == 4 * 3
    after = server.status()
    for same in ("pid", "term", "stale", "frontends"):
        assert after[same] == before[same]
    assert list(after["backends"]) == list(before["backends"])
    # The status is a copy, which may be a moment old.
    refused = before["links_refused"] + 12
    wait_until(lambda: bool(server.status()["links_refused"] >= refused), seconds=5)
    result = load(server, "emulated", rate=50, seconds=1)
    assert result["lost"] == result["duplicates"] == result["strangers"] == 0


def guess(port: int, hello: Hello) -> Goodbye:
    """The answer to a peer that takes the secret to be empty."""
    hello = msgspec.structs.replace(hello, dialled=f"127.0.0.1:{port}")
    with (
        socket.create_connection(("127.0.0.1", port), 5) as stranger,
        stranger.makefile("rb") as said,
    ):
        stranger.sendall(encode([hello])[0])
        challenge = Challenge(said.read(4 + 3 + 2 + NONCE_BYTES)[-NONCE_BYTES:])
        stranger.sendall(encode([prove(b"", CONNECTOR, hello, challenge)])[0])
        (goodbye,) = msgspec.msgpack.decode(said.read()[4:], type=list[Goodbye])
        return goodbye


def process_name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def test_a_bad_configuration_ends_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("applications: [{name: a, slo_ms: -1, variants: []}]\n")
    command = [sys.executable, "-m", "fermata.commands.main", "serve", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "slo_ms" in done.stderr
