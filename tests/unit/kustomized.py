"""What `kubectl kustomize` makes of an overlay, for the features that ours use."""

import copy
from pathlib import Path
from typing import Any

import yaml

KNOWN = {"apiVersion", "kind", "namespace", "resources", "patches", "images"}
CLUSTER_WIDE = {"Namespace"}


def render(folder: Path) -> list[dict[str, Any]]:
    """Every manifest of an overlay, patched."""
    given = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(given) <= KNOWN, f"{folder}: {set(given) - KNOWN} is not rendered here"
    found: list[dict[str, Any]] = []
    for name in given["resources"]:
        path = folder / name
        found += render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for patch in given.get("patches", []):
        target = patch["target"]
        (chosen,) = [
            each
            for each in found
            if (each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"])
        ]
        for step in yaml.safe_load((folder / patch["path"]).read_text()):
            apply(chosen, step)
    for image in given.get("images", []):
        _retag(found, image["name"], image["newTag"])
    if "namespace" in given:
        for each in found:
            if each["kind"] not in CLUSTER_WIDE:
                each["metadata"]["namespace"] = given["namespace"]
    return found


def apply(document: Any, step: dict[str, Any]) -> None:
    """One step of a JSON patch (RFC 6902); `replace` needs something there."""
    whole, (*parents, last) = document, _parts(step["path"])
    value = _at(whole, _parts(step["from"])) if step["op"] == "copy" else step["value"]
    document = _at(whole, parents)
    if last == "-":
        assert step["op"] in ("add", "copy"), step["op"]
        document.append(copy.deepcopy(value))
        return
    place: Any = int(last) if isinstance(document, list) else last
    if step["op"] == "replace":
        assert place in document or isinstance(place, int), f"nothing at {step['path']}"
    else:
        assert step["op"] == "add", step["op"]
    document[place] = copy.deepcopy(value)


def _parts(path: str) -> list[str]:
    return [_unescaped(part) for part in path.removeprefix("/").split("/")]


def _at(document: Any, parts: list[str]) -> Any:
    for part in parts:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _retag(node: Any, name: str, tag: str) -> None:
    if isinstance(node, dict):
        image = node.get("image")
        if isinstance(image, str) and image.partition(":")[0] == name:
            node["image"] = f"{name}:{tag}"
        for value in node.values():
            _retag(value, name, tag)
    elif isinstance(node, list):
        for value in node:
            _retag(value, name, tag)
