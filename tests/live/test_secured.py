"""The whole system with tokens, TLS towards clients and TLS on links."""

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

from served import ROOT, Server, descendants, serving, wait_until

from benchmarks.certificates import Authority
from fermata.clients.access import Access
from fermata.clients.describe import describe
from fermata.clients.wire.errors import RefusedError

pytestmark = [pytest.mark.live, pytest.mark.long]
TOKEN = secrets.token_hex(32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[Server]:
    (folder / "token").write_text(TOKEN)
    links = Authority(folder, "links-ca")
    one = links.vouch("fermata")
    clients = Authority(folder, "ca")
    server = clients.vouch("server")
    clients.vouch("camera")
    variant = {"name": "emulated-1", "model": "emulated", "alpha_ms": 1, "beta_ms": 5}
    shape = {"name": "input", "dtype": "UINT8", "shape": [2000]}
    config = {
        "applications": [
            {"name": name, "slo_ms": 200, "input": shape, "variants": [variant | {"name": name}]}
            for name in ("ours", "theirs")
        ],
        "backend": {"count": 2, "device": "emulated", "cpus": 0.1},
        "frontend": {
            "tls": {
                "certificate_file": str(server.certificate),
                "key_file": str(server.key),
                "client_ca_file": str(clients.file),
            }
        },
        "links": {
            "tls": {
                "certificate_file": str(one.certificate),
                "key_file": str(one.key),
                "ca_file": str(links.file),
            }
        },
        "tenants": [
            {
                "name": "cameras",
                "token_file": str(folder / "token"),
                "applications": ["ours"],
            }
        ],
    }
    with serving(folder, config, backends=2) as running:
        yield running


def load(server: Server, model: str, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [
        *(sys.executable, "-m", "fermata.commands.main", "load", "--model", model, "--json"),
        *("--server", f"127.0.0.1:{server.grpc_port}", "--rate", "50", "--duration-s", "3"),
    ]
    return subprocess.run(
        [*command, *more], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_who_has_token_and_certificate_is_served(secured: Server, folder: Path) -> None:
    known = [
        *("--ca-file", str(folder / "ca.crt")),
        *("--certificate-file", str(folder / "camera.crt")),
        *("--key-file", str(folder / "camera.key")),
    ]
    token = ["--token-file", str(folder / "token")]
    done = load(secured, "ours", *known, *token)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["lost"] == told["duplicates"] == 0
    assert told["good"] > 0.9 * told["requests"]
    for given, said in (
        ((*known,), "UNAUTHENTICATED"),
        ((*token,), "no server answers"),
        ((*known[:2], *token), "no server answers"),
    ):
        done = load(secured, "ours", *given)
        assert done.returncode == 2
        assert said in done.stderr
    done = load(secured, "theirs", *known, *token)
    assert "PERMISSION_DENIED" in done.stderr


def test_the_token_shows_nowhere(secured: Server, folder: Path) -> None:
    for told in (secured.said(), secured.page("status"), secured.page("metrics")):
        assert TOKEN not in told
    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in descendants(secured.process.pid)]
    sessions = {found for line in lines for found in re.findall(r"/[^=\0]*/session_[\w-]+", line)}
    logs = [path for each in sessions for path in Path(each, "logs").rglob("*") if path.is_file()]
    texts = [path.read_text(errors="replace") for path in logs]
    assert texts
    assert not any(TOKEN in text for text in texts)


def test_a_token_is_replaced_under_way(secured: Server, folder: Path) -> None:
    old = folder / "old-token"
    old.write_text(TOKEN)
    (folder / "token").write_text(secrets.token_hex(32))

    def admitted(token: Path) -> bool:
        files = (str(folder / name) for name in ("ca.crt", "camera.crt", "camera.key"))
        try:
            describe(f"127.0.0.1:{secured.grpc_port}", "ours", Access(str(token), "", *files))
        except RefusedError as error:
            return error.status != "UNAUTHENTICATED"
        return True

    wait_until(lambda: admitted(folder / "token"), 20)
    assert not admitted(old)
