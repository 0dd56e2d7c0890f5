"""What KubeRay would run, on a Ray cluster of several nodes on this machine."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("ray")
from served import ROOT

pytestmark = [pytest.mark.live, pytest.mark.long]
# A network of its own: the manifests' ports may be taken here.
ALONE = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def can_be_alone() -> bool:
    return subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_be_alone(), reason="no network namespaces for us on this machine")
def test_the_emulated_overlay_serves_on_several_nodes_and_is_upgraded() -> None:
    command = [*ALONE, sys.executable, "tests/live/cluster_script.py", "k8s/overlays/emulated"]
    environment = {**os.environ, "RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    load = told["load"]
    assert load["lost"] == load["duplicates"] == load["strangers"] == 0
    assert load["good"] > 0.5 * load["requests"]
    # Everything was replaced under load: nobody was lost, and most were in time all the same.
    upgraded = told["upgraded"]
    assert upgraded["lost"] == upgraded["duplicates"] == upgraded["strangers"] == 0
    assert upgraded["good"] > 0.5 * upgraded["requests"]
    assert told["slo_ns"] == 60_000_000
    assert told["afterwards"]["lost"] == 0
    where = told["where"]
    head, front = "127.0.0.1", {"127.0.0.2", "127.0.0.3"}
    assert where["Frontend"] == sorted(front)
    assert set(where["RouterActor"] + where["ControlPlane"]) <= front
    assert not front & set(where["Backend"])
    assert head not in {place for places in where.values() for place in places}
