"""Manifests: against KubeRay's and Kubernetes' schemas, closed against unknown fields, and against
our own configuration model. `FERMATA_KUBERAY_CRDS` names the folder of KubeRay's CRDs."""

import copy
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kustomized import render

from fermata.deployments.config.backend_groups import groups_of
from fermata.deployments.config.deployment import DeploymentConfig, read_config
from fermata.deployments.config.sub_clusters import backend_limits
from fermata.deployments.specs.frontend import FrontendOptions
from fermata.deployments.specs.tls import ServerTls
from fermata.router.links.tls import LinkTls

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
FOLDERS = {"base": K8S / "base"} | {
    each.name: each for each in sorted((K8S / "overlays").iterdir())
}
CRDS = Path(os.environ.get("FERMATA_KUBERAY_CRDS", ROOT / "../shared/data/kuberay"))
KUBERNETES = "1.32"


@pytest.fixture(params=FOLDERS)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(FOLDERS[request.param])


def ray_service(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [each for each in manifests if each["kind"] == "RayService"]
    return found


def serve_config(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return dict(yaml.safe_load(ray_service(manifests)["spec"]["serveConfigV2"]))


def our_config(manifests: list[dict[str, Any]]) -> DeploymentConfig:
    (application,) = serve_config(manifests)["applications"]
    return read_config(application["args"]["config"])


def closed(schema: Any) -> Any:
    """The schema, with every object that names its fields refusing others, as the API server's
    strict validation does."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in found and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if found.pop("x-kubernetes-int-or-string", False):
        found.pop("type", None)
        found["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return found


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_kubectl_renders_what_is_tested_here(folder: Path) -> None:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, check=True)
    assert not done.stderr

    def by_name(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
        return {(each["kind"], each["metadata"]["name"]): each for each in found}

    assert by_name(list(yaml.safe_load_all(done.stdout))) == by_name(render(folder))


@pytest.fixture(scope="module")
def ray_schema() -> dict[str, Any]:
    path = CRDS / "ray.io_rayservices.yaml"
    if not path.exists():
        pytest.skip(f"KubeRay's CRDs are not at {CRDS}; name their folder in FERMATA_KUBERAY_CRDS")
    crd = yaml.safe_load(path.read_text())
    (version,) = [each for each in crd["spec"]["versions"] if each["name"] == "v1"]
    schema: dict[str, Any] = closed(version["schema"]["openAPIV3Schema"])
    # The API server knows what an object's own name and labels are.
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def test_kuberay_takes_the_service(
    manifests: list[dict[str, Any]], ray_schema: dict[str, Any]
) -> None:
    jsonschema.validate(ray_service(manifests), ray_schema)


@pytest.mark.parametrize(
    "where",
    ["spec", "spec/rayClusterConfig", "spec/rayClusterConfig/headGroupSpec/template/spec"],
)
def test_a_misspelt_field_would_be_found(where: str, ray_schema: dict[str, Any]) -> None:
    service = copy.deepcopy(ray_service(render(FOLDERS["gpu"])))
    node = service
    for part in where.split("/"):
        node = node[part]
    node["enableInTreeAutoscalling"] = True
    with pytest.raises(jsonschema.ValidationError, match="enableInTreeAutoscalling"):
        jsonschema.validate(service, ray_schema)


def test_kubernetes_takes_the_rest(manifests: list[dict[str, Any]]) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for each in manifests:
        if each["kind"] != "RayService":
            validate(each, KUBERNETES, strict=True)


def test_serve_and_our_own_model_take_the_embedded_configuration(
    manifests: list[dict[str, Any]],
) -> None:
    schema = pytest.importorskip("ray.serve.schema")
    found = schema.ServeDeploySchema(**serve_config(manifests))
    assert found.applications[0].import_path == "fermata.deployments.app:build"
    config = our_config(manifests)
    # Pods reach one another by their own addresses, and clients by any.
    assert config.links.host == "node"
    assert config.frontend.host == "0.0.0.0"


def groups(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    cluster = ray_service(manifests)["spec"]["rayClusterConfig"]
    return {each["groupName"]: each for each in cluster["workerGroupSpecs"]}


def offered(group: dict[str, Any]) -> dict[str, float]:
    """What Ray is told of a pod."""
    given = group["rayStartParams"]
    custom = json.loads(json.loads(given["resources"]))
    return {"CPU": float(given["num-cpus"]), "GPU": float(given["num-gpus"]), **custom}


def needed(config: DeploymentConfig, part: str) -> dict[str, float]:
    section = getattr(config, part)
    gpus = float(part == "backend" and config.backend.device == "cuda")
    cpus = 0.1 if part == "control" else section.cpus
    return {"CPU": cpus, "GPU": gpus, **section.resources}


def backend_groups(config: DeploymentConfig) -> dict[str, DeploymentConfig]:
    """The deployment as backends see it, by the group of pods that they belong to."""
    if not config.backends:
        return {"backends": config}
    own = groups_of(config)
    return {f"backends-{next(iter(each.backend.resources))}": each for each in own}


def test_every_group_of_backends_has_pods_of_its_own(manifests: list[dict[str, Any]]) -> None:
    named = {name for name in groups(manifests) if name.startswith("backends")}
    assert named == set(backend_groups(our_config(manifests)))


def test_every_process_fits_a_pod_of_its_group_and_no_other(
    manifests: list[dict[str, Any]],
) -> None:
    config = our_config(manifests)
    found = {name: offered(each) for name, each in groups(manifests).items()}
    backends = [(each, "backend", name) for name, each in backend_groups(config).items()]
    for own, part, home in (
        (config, "frontend", "frontends"),
        (config, "router", "routers"),
        (config, "control", "routers"),
        *backends,
    ):
        wanted = needed(own, part)
        fits = {
            name
            for name, pod in found.items()
            if all(pod.get(key, 0) >= amount for key, amount in wanted.items())
        }
        assert fits == {home}, part


def test_all_processes_fit_the_pods_that_are_there_at_the_start(
    manifests: list[dict[str, Any]],
) -> None:
    config = our_config(manifests)
    found = groups(manifests)
    front = offered(found["frontends"])["CPU"] * found["frontends"]["replicas"]
    assert config.frontend.cpus * config.frontend.processes <= front
    assert config.router.cpus + 0.1 <= offered(found["routers"])["CPU"]
    assert (
        config.frontend.processes
        <= (config.frontend.per_node or 1) * found["frontends"]["replicas"]
    )
    # With groups of backends, each has a router and a standby.
    assert found["routers"]["replicas"] >= 2 * config.sub_clusters.routers
    for number, (name, own) in enumerate(backend_groups(config).items()):
        pods = found[name]
        back = offered(pods)["CPU"] * pods["replicas"]
        assert own.backend.cpus * own.backend.count <= back
        if config.autoscaler is not None:
            least, most = backend_limits(config)[number]
            assert pods["minReplicas"] <= least <= most <= pods["maxReplicas"]


def test_a_router_and_its_standby_are_on_two_machines_and_with_no_frontend(
    manifests: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    config, group = our_config(manifests), groups(manifests)["routers"]
    assert config.router.standby
    # A pod offers room for one of the two seats.
    assert offered(group)["routers"] == config.router.resources["routers"] == 1
    assert group["minReplicas"] == 2 * config.sub_clusters.routers
    [spread] = group["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    # A laptop's cluster has one machine.
    laptop = "emulated" in request.node.name
    assert spread["whenUnsatisfiable"] == ("ScheduleAnyway" if laptop else "DoNotSchedule")


RAY_MB = 1500
"""Ray's own processes in a pod: raylet, agents, Serve's proxy."""
PROCESS_MB = 500
"""One of ours, before the first request."""
PICTURE_BYTES = 6
"""A pixel while it is decoded: three channels, and a copy of another shape."""


def test_a_frontends_pod_has_the_memory_that_its_limits_may_take(
    manifests: list[dict[str, Any]],
) -> None:
    config = our_config(manifests)
    pod = groups(manifests)["frontends"]["template"]["spec"]
    given, processes = config.frontend, config.frontend.per_node or 1
    pictures = any(each.input is not None and each.input.image for each in config.applications)
    decoded_mb = FrontendOptions(0).decoders * given.picture_megapixels_max * PICTURE_BYTES
    # Inputs, and as much of messages that have not come whole.
    each_mb = PROCESS_MB + 2 * given.payload_mb + (decoded_mb if pictures else 0)
    assert gibibytes(pod["containers"][0]["resources"]["limits"]["memory"]) * 1074 >= (
        RAY_MB + processes * each_mb
    )
    [shared] = [each["emptyDir"] for each in pod["volumes"] if each["name"] == "shm"]
    assert gibibytes(shared["sizeLimit"]) * 1074 >= processes * given.payload_mb


def gibibytes(text: str) -> float:
    assert text.endswith("Gi"), text
    return float(text[:-2])


def test_nothing_goes_out_but_to_one_another_and_to_the_names(
    manifests: list[dict[str, Any]],
) -> None:
    policies = [each for each in manifests if each["kind"] == "NetworkPolicy"]
    out = {
        each["metadata"]["name"]: each["spec"]
        for each in policies
        if "Egress" in each["spec"]["policyTypes"]
    }
    assert set(out) == {"fermata-egress", "fermata-autoscaler"}
    own = out["fermata-egress"]
    assert own["podSelector"]["matchLabels"] == {"app.kubernetes.io/part-of": "fermata"}
    assert all("to" in rule for rule in own["egress"])
    # Any address, but on the ports of Kubernetes' own server, and for the head alone.
    assert out["fermata-autoscaler"]["podSelector"]["matchLabels"] == {"fermata/role": "head"}
    [rule] = out["fermata-autoscaler"]["egress"]
    assert {each["port"] for each in rule["ports"]} == {443, 6443}


def test_the_head_has_no_work(manifests: list[dict[str, Any]]) -> None:
    head = ray_service(manifests)["spec"]["rayClusterConfig"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert our_config(manifests).router.cpus > 0


def pod_specs(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    cluster = ray_service(manifests)["spec"]["rayClusterConfig"]
    yield cluster["headGroupSpec"]["template"]["spec"]
    for group in cluster["workerGroupSpecs"]:
        yield group["template"]["spec"]
    for each in manifests:
        if each["kind"] in ("StatefulSet", "Deployment"):
            yield each["spec"]["template"]["spec"]


def test_nothing_runs_as_root_or_without_limits(manifests: list[dict[str, Any]]) -> None:
    for spec in pod_specs(manifests):
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]
            assert not container["image"].endswith(":latest")
            assert ":" in container["image"]


DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def test_images_of_others_are_named_by_their_digests(manifests: list[dict[str, Any]]) -> None:
    images = {each["image"] for spec in pod_specs(manifests) for each in spec["containers"]}
    others = {each for each in images if not each.startswith("fermata:")}
    assert others
    assert [each for each in others if not DIGEST.search(each)] == []


def test_the_image_is_built_on_one_that_is_named_by_its_digest() -> None:
    text = (K8S / "Dockerfile").read_text()
    [base] = re.findall(r"^ARG PYTHON=(.+)$", text, re.MULTILINE)
    assert DIGEST.search(base)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"python:${PYTHON}"}
    # A syntax of its own would be one more image.
    assert "syntax=" not in text


def test_no_secret_stands_in_a_manifest() -> None:
    for path in K8S.rglob("*.yaml"):
        text = path.read_text()
        assert not re.search(r"kind: Secret\b", text), path


def test_clients_meet_ports_that_frontends_listen_on(manifests: list[dict[str, Any]]) -> None:
    config = our_config(manifests)
    (service,) = [
        each
        for each in manifests
        if each["kind"] == "Service" and each["metadata"]["name"] == "fermata"
    ]
    pod = groups(manifests)["frontends"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
    assert ports["grpc"] == config.frontend.grpc_port
    assert ports["http"] == config.frontend.http_port
    for each in service["spec"]["ports"]:
        assert ports[each["targetPort"]] == each["port"]
    # Nobody else in the pod may want those: KubeRay gives Ray's exporter 8080 by itself.
    assert (
        int(groups(manifests)["frontends"]["rayStartParams"]["metrics-export-port"])
        == ports["metrics"]
    )
    assert len(set(ports.values())) == len(ports)


def test_only_clients_ports_are_open_to_everybody(manifests: list[dict[str, Any]]) -> None:
    policies = [each["spec"] for each in manifests if each["kind"] == "NetworkPolicy"]
    for spec in policies:
        for rule in spec.get("ingress", ()):
            if "from" not in rule:
                assert spec["podSelector"]["matchLabels"] == {"fermata/role": "frontend"}
                assert {port["port"] for port in rule["ports"]} == {8001, 8080}


def test_every_pod_is_behind_a_policy_and_a_budget(manifests: list[dict[str, Any]]) -> None:
    cluster = ray_service(manifests)["spec"]["rayClusterConfig"]
    templates = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for template in templates:
        labels = template["template"]["metadata"]["labels"].items()
        for kind, key in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
            chosen = [
                each
                for each in manifests
                if each["kind"] == kind and each["spec"][key]["matchLabels"].items() <= labels
            ]
            assert chosen, (kind, labels)


def test_gpus_are_asked_for_where_the_configuration_wants_them() -> None:
    manifests = render(FOLDERS["gpu"])
    container = groups(manifests)["backends"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert our_config(manifests).backend.device == "cuda"
    upgrade = ray_service(manifests)["spec"]["upgradeStrategy"]
    assert upgrade["clusterUpgradeOptions"]["maxSurgePercent"] < 100


def test_the_image_has_every_package() -> None:
    """A package that is not copied would be missing in the cluster alone."""
    text = (K8S / "Dockerfile").read_text()
    copied = set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE))
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    # Figures are not measured in the cluster.
    assert copied == packages - {"benchmarks"}
    assert "USER 1000" in text


def named_files(node: Any) -> Iterator[str]:
    """Every value of a key that names a file."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from named_files(value)
        elif isinstance(value, list):
            for each in value:
                yield from named_files(each) if isinstance(each, dict) else ()
        elif key.endswith("_file") and value:
            yield value


def test_every_secret_is_mounted_where_it_is_read(manifests: list[dict[str, Any]]) -> None:
    config = our_config(manifests)
    links = list(named_files(config.links.model_dump()))
    rest = list(named_files(config.frontend.model_dump() | {"tenants": tenants_of(config)}))
    assert links
    assert rest
    tokens = [each for each in rest if "/tokens/" in each]
    files_of = {"frontends": links + rest, "routers": links + tokens}
    files_of |= dict.fromkeys(backend_groups(config), links)
    for group, files in files_of.items():
        spec = groups(manifests)[group]["template"]["spec"]
        held = {each["name"]: each["secret"] for each in spec["volumes"] if each.get("secret")}
        mounts = {
            each["mountPath"]: held[each["name"]]
            for each in spec["containers"][0]["volumeMounts"]
            if each["name"] in held
        }
        assert {str(Path(file).parent) for file in files} == set(mounts), group
        # Its own group alone: `fsGroup` is the user's.
        assert all(each["defaultMode"] == 0o440 for each in mounts.values())


def tenants_of(config: DeploymentConfig) -> list[dict[str, Any]]:
    return [each.model_dump() for each in config.tenants]


def test_clients_come_in_by_tls_and_with_a_token(manifests: list[dict[str, Any]]) -> None:
    config = our_config(manifests)
    assert config.tenants
    assert config.links.tls is not None
    assert config.frontend.tls is not None
    probe = groups(manifests)["frontends"]["template"]["spec"]["containers"][0]["readinessProbe"]
    assert probe["httpGet"]["scheme"] == "HTTPS"


def test_certificates_made_as_the_readme_says_work(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    lines = (K8S / "README.md").read_text().splitlines()
    commands = [line[2:] for line in lines if line.startswith(("$ openssl req", "$ openssl x509"))]
    for command in commands:
        subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
    files = [str(tmp_path / name) for name in ("links.crt", "links.key", "links-ca.crt")]
    client, server = LinkTls(*files).seal(False), LinkTls(*files).seal(True)
    server.wrap(b"")
    _, reply = server.unwrap(client.wrap(b"hello"))
    assert server.unwrap(client.unwrap(reply)[1])[0] == b"hello"
    ServerTls(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")).check()
