"""The HTTP API as an OpenAPI document, for client generators and for tests."""

from fermata.deployments.frontend.protocol.server_metadata import VERSION
from fermata.foundation.json_types import JsonObject


def document() -> JsonObject:
    """The whole document; it names no models."""
    paths: dict[str, JsonObject] = {
        "/v2": {"get": _get("Name and version of this server", "server", "Server")},
        "/v2/health/live": {"get": _health("Whether the process runs", "live")},
        "/v2/health/ready": {"get": _health("Whether requests can be served", "ready")},
        "/v2/models/stats": {"get": _get("Counts of all models", "stats", "Statistics")},
        "/v2/repository/index": {"post": _get("Every model and its state", "index", "Index")},
    }
    for verb in ("load", "unload"):
        done: JsonObject = {"description": "It is done"}
        paths[f"/v2/repository/models/{{model}}/{verb}"] = {
            "post": _operation(f"Wait until a model is {verb}ed", verb, ("model",), done)
        }
    for path, parts in (
        ("/v2/models/{model}", ("model",)),
        ("/v2/models/{model}/versions/{version}", ("model", "version")),
    ):
        name = "version" if len(parts) > 1 else "model"
        paths[path] = {"get": _get("Inputs and outputs of a model", name, "Model", parts)}
        paths[f"{path}/ready"] = {"get": _health("Whether it is served", f"{name}_ready", parts)}
        paths[f"{path}/config"] = {
            "get": _get("Its configuration", f"{name}_config", "Configuration", parts)
        }
        paths[f"{path}/stats"] = {"get": _get("Its counts", f"{name}_stats", "Statistics", parts)}
        paths[f"{path}/infer"] = {"post": _infer(f"{name}_infer", parts)}
        paths[f"{path}/feedback"] = {"post": _feedback(f"{name}_feedback", parts)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Open Inference Protocol v2, as fermata serves it", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    summary: str, name: str, parts: tuple[str, ...], ok: JsonObject, **others: JsonObject
) -> JsonObject:
    """One method of a path; `others` are answers beside `ok`, by their status."""
    refusal = _json("A refusal, with its reason", "Refusal")
    text: JsonObject = {"type": "string", "minLength": 1}
    return {
        "summary": summary,
        "operationId": name,
        "parameters": [
            {"name": part, "in": "path", "required": True, "schema": text} for part in parts
        ],
        "responses": {"200": ok, "default": refusal, **others},
        # Needed if tenants are configured.
        "security": [{}, {"token": []}],
    }


def _get(summary: str, name: str, schema: str, parts: tuple[str, ...] = ()) -> JsonObject:
    return _operation(summary, name, parts, _json(summary, schema))


def _health(summary: str, name: str, parts: tuple[str, ...] = ()) -> JsonObject:
    plain = {"text/plain": {"schema": {"type": "string"}}}
    ok: JsonObject = {"description": "It is", "content": plain}
    unready: JsonObject = {
        "description": "It is not, or not yet",
        "content": {**plain, "application/json": {"schema": _named("Refusal")}},
    }
    return _operation(summary, name, parts, ok, **{"503": unready})


def _infer(name: str, parts: tuple[str, ...]) -> JsonObject:
    answer = _json("Its answer", "Answer")
    binary: JsonObject = {"schema": {"type": "string", "format": "binary"}}
    content = {**answer["content"], "application/octet-stream": binary}  # type: ignore[dict-item]
    found = _operation("One request", name, parts, {**answer, "content": content})
    body = {"application/json": {"schema": _named("Request")}}
    return {**found, "requestBody": {"required": True, "content": body}}


def _feedback(name: str, parts: tuple[str, ...]) -> JsonObject:
    done: JsonObject = {"description": "It is taken"}
    found = _operation("The true class of an earlier request", name, parts, done)
    body = {"application/json": {"schema": _named("Feedback")}}
    return {**found, "requestBody": {"required": True, "content": body}}


def _json(description: str, schema: str) -> JsonObject:
    return {
        "description": description,
        "content": {"application/json": {"schema": _named(schema)}},
    }


def _named(schema: str) -> JsonObject:
    return {"$ref": f"#/components/schemas/{schema}"}


def _object(required: list[str], **properties: JsonObject) -> JsonObject:
    return {"type": "object", "required": required, "properties": properties}


TEXT: JsonObject = {"type": "string"}
CLASS: JsonObject = {"type": ["integer", "string"], "minimum": 0}
PARAMETERS: JsonObject = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
DIMENSIONS: JsonObject = {"type": "array", "items": {"type": "integer"}}
DATA: JsonObject = {"type": "array", "items": {"type": ["number", "string", "boolean", "array"]}}
TENSOR: JsonObject = _object(
    ["name", "datatype", "shape"],
    name=TEXT,
    datatype=TEXT,
    shape=DIMENSIONS,
    parameters=PARAMETERS,
    data=DATA,
)
OUTPUT: JsonObject = _object(["name"], name=TEXT, parameters=PARAMETERS)
SPEC: JsonObject = _object(
    ["name", "datatype", "shape"], name=TEXT, datatype=TEXT, shape=DIMENSIONS
)
SCHEMAS: JsonObject = {
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
    "Feedback": {
        **_object(["label"], label=CLASS, answer=CLASS, variant=TEXT),
        "additionalProperties": False,
    },
    "Answer": _object(
        ["model_name", "outputs"],
        model_name=TEXT,
        model_version=TEXT,
        id=TEXT,
        parameters=PARAMETERS,
        outputs={"type": "array", "items": TENSOR},
    ),
    "Configuration": _object(
        ["name", "input", "output"],
        name=TEXT,
        input={"type": "array", "items": {"type": "object"}},
        output={"type": "array", "items": {"type": "object"}},
    ),
    "Statistics": _object(
        ["model_stats"], model_stats={"type": "array", "items": {"type": "object"}}
    ),
    "Index": {
        "type": "array",
        "items": _object(["name", "state"], name=TEXT, version=TEXT, state=TEXT, reason=TEXT),
    },
    "Refusal": _object(["error", "status", "reason"], error=TEXT, status=TEXT, reason=TEXT),
}
