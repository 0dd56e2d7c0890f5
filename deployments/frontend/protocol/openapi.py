"""The HTTP API as an OpenAPI document, for client generators and for tests."""

from typing import Any

from fermata.deployments.frontend.protocol.server_metadata import VERSION

Json = dict[str, Any]


def document() -> Json:
    """The whole document; it names no models."""
    paths: Json = {
        "/v2": {"get": _get("Name and version of this server", "server", "Server")},
        "/v2/health/live": {"get": _health("Whether the process runs", "live")},
        "/v2/health/ready": {"get": _health("Whether requests can be served", "ready")},
    }
    for path, parts in (
        ("/v2/models/{model}", ("model",)),
        ("/v2/models/{model}/versions/{version}", ("model", "version")),
    ):
        name = "version" if len(parts) > 1 else "model"
        paths[path] = {"get": _get("Inputs and outputs of a model", name, "Model", parts)}
        paths[f"{path}/ready"] = {"get": _health("Whether it is served", f"{name}_ready", parts)}
        paths[f"{path}/infer"] = {"post": _infer(f"{name}_infer", parts)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Open Inference Protocol v2, as fermata serves it", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(summary: str, name: str, parts: tuple[str, ...], ok: Json) -> Json:
    text = {"type": "string", "minLength": 1}
    return {
        "summary": summary,
        "operationId": name,
        "parameters": [
            {"name": part, "in": "path", "required": True, "schema": text} for part in parts
        ],
        "responses": {"200": ok, "default": _json("A refusal, with its reason", "Refusal")},
        # Needed if tenants are configured.
        "security": [{}, {"token": []}],
    }


def _get(summary: str, name: str, schema: str, parts: tuple[str, ...] = ()) -> Json:
    return _operation(summary, name, parts, _json(summary, schema))


def _health(summary: str, name: str, parts: tuple[str, ...] = ()) -> Json:
    plain = {"text/plain": {"schema": {"type": "string"}}}
    found = _operation(summary, name, parts, {"description": "It is", "content": plain})
    found["responses"]["503"] = {
        "description": "It is not, or not yet",
        "content": plain | {"application/json": {"schema": _named("Refusal")}},
    }
    return found


def _infer(name: str, parts: tuple[str, ...]) -> Json:
    found = _operation("One request", name, parts, _json("Its answer", "Answer"))
    body = {"application/json": {"schema": _named("Request")}}
    found["requestBody"] = {"required": True, "content": body}
    return found


def _json(description: str, schema: str) -> Json:
    return {
        "description": description,
        "content": {"application/json": {"schema": _named(schema)}},
    }


def _named(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def _object(required: list[str], **properties: Json) -> Json:
    return {"type": "object", "required": required, "properties": properties}


TEXT: Json = {"type": "string"}
PARAMETERS: Json = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
DIMENSIONS: Json = {"type": "array", "items": {"type": "integer"}}
DATA: Json = {"type": "array", "items": {"type": ["number", "string", "boolean", "array"]}}
TENSOR: Json = _object(
    ["name", "datatype", "shape"],
    name=TEXT,
    datatype=TEXT,
    shape=DIMENSIONS,
    parameters=PARAMETERS,
    data=DATA,
)
OUTPUT: Json = _object(["name"], name=TEXT, parameters=PARAMETERS)
SPEC: Json = _object(["name", "datatype", "shape"], name=TEXT, datatype=TEXT, shape=DIMENSIONS)
SCHEMAS: Json = {
    "Server": _object(
        ["name", "version", "extensions"],
        name=TEXT,
        version=TEXT,
        extensions={"type": "array", "items": TEXT},
    ),
    "Model": _object(
        ["name", "versions", "platform", "inputs", "outputs"],
        name=TEXT,
        versions={"type": "array", "items": TEXT},
        platform=TEXT,
        inputs={"type": "array", "items": SPEC},
        outputs={"type": "array", "items": SPEC},
        parameters={"type": "object"},
    ),
    "Request": _object(
        ["inputs"],
        id=TEXT,
        parameters=PARAMETERS,
        inputs={"type": "array", "items": TENSOR, "minItems": 1},
        outputs={"type": "array", "items": OUTPUT},
    ),
    "Answer": _object(
        ["model_name", "outputs"],
        model_name=TEXT,
        model_version=TEXT,
        id=TEXT,
        parameters=PARAMETERS,
        outputs={"type": "array", "items": TENSOR},
    ),
    "Refusal": _object(["error", "status", "reason"], error=TEXT, status=TEXT, reason=TEXT),
}
