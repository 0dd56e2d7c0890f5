"""Runs the Serve configuration of a RayService, as it stands, on a Ray cluster of several nodes on
this machine: `python cluster_script.py OVERLAY`. In a network of its own, since ports are as there.
Then deploys it once more with another SLO, which replaces every process, while a client loads it.

Each node has an address of its own, so that processes find one another as pods do.
"""

import json
import re
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/unit"))
from kustomized import render  # noqa: E402

from benchmarks.certificates import Authority  # noqa: E402

WAIT_S = 150.0
HEAD = "127.0.0.1"
UPGRADE_S = 40


def nodes(service: dict[str, Any]) -> list[dict[str, Any]]:
    """What each worker pod offers to Ray."""
    found: list[dict[str, Any]] = []
    for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        given = group["rayStartParams"]
        one = {
            "num_cpus": int(given["num-cpus"]),
            "resources": json.loads(json.loads(given["resources"])),
        }
        found += [one] * group["replicas"]
    return found


def status() -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{HEAD}:8000/status", timeout=5) as answer:
        return dict(json.loads(answer.read()))


def wait_until_served(frontends: int, backends: int) -> None:
    end_s = time.monotonic() + WAIT_S
    told: Any = None
    while time.monotonic() < end_s:
        try:
            told = status()
            if len(told["frontends"]) == frontends and len(told["backends"]) == backends:
                return
        except (OSError, ValueError) as error:
            told = error
        time.sleep(0.5)
    raise SystemExit(f"not served after {WAIT_S:g} s: {told}")


def make_secrets(folder: Path) -> None:
    """The files of the secrets that the manifests mount."""
    for name in ("tls", "links", "tokens"):
        (folder / name).mkdir()
    (folder / "tokens/clients").write_text(secrets.token_hex(32))
    Authority(folder / "tls", "ca").vouch("tls", HEAD)
    authority = Authority(folder / "links", "ca")
    # The name that processes know one another by, in files of the secret's names.
    pair = authority.vouch("fermata")
    pair.certificate.rename(folder / "links/tls.crt")
    pair.key.rename(folder / "links/tls.key")


def load(model: str, seconds: int, folder: Path) -> "subprocess.Popen[str]":
    command = [
        *(sys.executable, "-m", "fermata.commands.main", "load", "--json", "--model", model),
        *("--rate", "50", "--duration-s", str(seconds), "--server", f"{HEAD}:8001"),
        *("--token-file", str(folder / "tokens/clients")),
        *("--ca-file", str(folder / "tls/ca.crt")),
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def finished(loading: "subprocess.Popen[str]") -> dict[str, Any]:
    """What the client's ledger says."""
    text, _ = loading.communicate()
    assert loading.returncode == 0, text
    return dict(json.loads(text))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(Path(sys.argv[1]), Path(folder))


def run(overlay: Path, folder: Path) -> None:
    make_secrets(folder)
    (service,) = [each for each in render(overlay) if each["kind"] == "RayService"]
    serve_config = yaml.safe_load(
        service["spec"]["serveConfigV2"].replace("/etc/fermata", str(folder))
    )
    wanted = serve_config["applications"][0]["args"]["config"]

    from ray.cluster_utils import Cluster
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    head = {"num_cpus": 0, "include_dashboard": True, "node_ip_address": HEAD}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        for number, node in enumerate(nodes(service), start=2):
            cluster.add_node(node_ip_address=f"127.0.0.{number}", **node)
        # As KubeRay hands it over.
        client: Any = ServeSubmissionClient(f"http://{cluster.head_node.webui_url}")
        client.deploy_applications(serve_config)
        wait_until_served(wanted["frontend"]["processes"], wanted["backend"]["count"])
        model = wanted["applications"][0]["name"]
        quiet = finished(load(model, 3, folder))
        where = actors()
        under_way = load(model, UPGRADE_S, folder)
        # The old deployment serves a part of it.
        time.sleep(3)
        wanted["applications"][0]["slo_ms"] += 10
        client.deploy_applications(serve_config)
        upgraded = finished(under_way)
        afterwards = finished(load(model, 3, folder))
        told = {"load": quiet, "upgraded": upgraded, "afterwards": afterwards, "where": where}
        print(json.dumps({**told, "slo_ns": status()["applications"][model]["slo_ns"]}))
        client.delete_applications()
        wait_until_gone()
    finally:
        cluster.shutdown()


def wait_until_gone() -> None:
    """Nothing of ours outlives the application, the router neither."""
    end_s = time.monotonic() + 60
    while left := actors():
        if time.monotonic() > end_s:
            raise SystemExit(f"still there after the application has gone: {left}")
        time.sleep(1)


def actors() -> dict[str, list[str]]:
    """On which addresses our processes are."""
    import ray
    from ray.util.state import list_actors, list_nodes

    ray.init(address="auto", logging_level="ERROR")
    address = {each.node_id: each.node_ip for each in list_nodes()}
    found: dict[str, list[str]] = {}
    for each in list_actors(filters=[("state", "=", "ALIVE")]):
        # Routers of other code have another mark behind the name of their class.
        name = re.sub("(RouterActor)[0-9a-f]*", r"\1", each.class_name.rpartition(":")[2])
        if name in ("Frontend", "Backend", "ControlPlane", "RouterActor"):
            found.setdefault(name, []).append(address[each.node_id])
    ray.shutdown()
    return {name: sorted(places) for name, places in found.items()}


if __name__ == "__main__":
    main()
